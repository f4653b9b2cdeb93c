"""Requests of an editor of chains."""
