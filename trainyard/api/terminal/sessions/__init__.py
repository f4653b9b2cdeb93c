"""Step sessions as text."""
