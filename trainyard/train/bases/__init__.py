"""What is done to a base before it is trained: the first weights of an adapter, positions, added tokens."""
