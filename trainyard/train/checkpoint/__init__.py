"""What a run needs for a bit-identical resume: its state, and its checkpoints."""
