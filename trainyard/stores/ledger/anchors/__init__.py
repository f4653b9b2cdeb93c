"""Anchors of the ledger: places besides this machine that keep a checkpoint, so that its owner cannot rewrite it."""
