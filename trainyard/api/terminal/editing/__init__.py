"""Drafts of chains, and the nodes of a run, as text."""
