"""Step sessions for callers: created, found, called and closed."""
