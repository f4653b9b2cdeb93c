"""Tokens, and the log of what changed something."""
