"""Tokens of the API, and the audit log."""
