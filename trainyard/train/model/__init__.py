"""Base models: the output layer, attention, precision, positions, vocabulary, and sampling from it."""
