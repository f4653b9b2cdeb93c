"""Chains: checked, planned, run, stored, compared, imported and exported."""
