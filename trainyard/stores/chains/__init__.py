"""Chains that users store: numbered revisions that never change."""
