"""The command line: a loop over the operations."""
