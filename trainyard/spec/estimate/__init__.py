"""Estimate of a run: rows and steps, trained parameters, memory, disk and time; arithmetic only."""
