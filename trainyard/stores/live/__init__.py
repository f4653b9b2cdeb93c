"""What the service keeps ready for quick answers: the index of jobs and the curves of their metrics."""
