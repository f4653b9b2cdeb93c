"""The objectives, one file each. To add one: a file with the six functions, a row here, a parity test."""
