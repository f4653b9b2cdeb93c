"""Requests about who may ask for what, and what was asked for."""
