"""State for a bit-identical resume: its state, and its checkpoints."""
