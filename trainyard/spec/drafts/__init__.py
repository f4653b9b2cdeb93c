"""Chains while they are written: whole or not yet, with ids, links and ports as they would be."""
