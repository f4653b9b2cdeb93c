"""Quiet-STaR: a thought after every token."""
