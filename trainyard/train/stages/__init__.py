"""The objectives, one file each; their facts are in `spec/axes/stages`."""
