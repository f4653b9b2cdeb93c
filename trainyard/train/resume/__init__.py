"""What a run needs for a bit-identical resume: its state, its checkpoints, and the proof."""
