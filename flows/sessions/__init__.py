"""The flow of a step session."""
