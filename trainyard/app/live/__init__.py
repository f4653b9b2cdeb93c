"""Answers from the service's indexes: jobs, curves, and streams of both."""
