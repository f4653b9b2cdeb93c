"""The objectives, one file each. To add one: a file with the six functions, a row in `table.py`, a parity test."""
