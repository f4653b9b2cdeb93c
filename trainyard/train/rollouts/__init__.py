"""Completions that a model draws and learns from: what they are worth, and what each of their tokens adds."""
