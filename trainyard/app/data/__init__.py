"""Data sets before anything is trained on them."""
