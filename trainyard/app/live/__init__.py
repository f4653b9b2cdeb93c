"""Answers from what the service keeps ready: jobs from the index, curves from their store, and streams of both."""
