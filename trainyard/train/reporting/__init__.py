"""Reporters of each step: the events file, a bar on a terminal, and the trackers (`reporting.py`)."""
