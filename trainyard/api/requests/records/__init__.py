"""Requests about what runs, evaluations and nights have left."""
