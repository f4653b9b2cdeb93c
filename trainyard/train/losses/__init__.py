"""The objectives, one file each, and the arithmetic that they share; their facts are in `spec/axes/stages`."""
