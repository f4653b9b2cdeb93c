"""The axes of a training run: one module per axis."""
