"""The label of a position without loss, for what counts tokens and never imports torch."""

IGNORED = -100
"""Label of a position that takes no part in the loss (the convention of torch and transformers)."""
