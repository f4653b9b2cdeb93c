"""How the sequences of a batch lie in its rows."""
