"""Tokens and the audit log as text."""
