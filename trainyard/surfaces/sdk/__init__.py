"""Trainyard from Python: chains as objects, and every operation as a function of its name."""
