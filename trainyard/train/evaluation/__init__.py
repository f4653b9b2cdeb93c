"""Evaluation while a training runs: what is measured when, and how far the model has moved from its base."""
