"""Indexes that the service keeps ready: the index of jobs and the curves of their metrics."""
