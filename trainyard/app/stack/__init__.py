"""Services of this machine, its home and its health."""
