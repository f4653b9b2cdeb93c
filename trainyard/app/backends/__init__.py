"""Trainers of this machine and their environments."""
