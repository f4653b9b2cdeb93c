"""Requests of step sessions."""
