"""Sparse attention: which tokens (DeepSeek) or which heads (MoH) a token uses."""
