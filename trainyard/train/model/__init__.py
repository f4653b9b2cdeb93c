"""How a base model is read: its output layer, attention, precision, positions, vocabulary, and sampling from it."""
