"""Results of runs by their nodes."""
