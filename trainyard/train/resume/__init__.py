"""What a run needs to go on to the same bits: its state, its checkpoints, and the proof."""
