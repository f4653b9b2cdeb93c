"""A step session as its parent and its callers see it: its record, its socket, its process. Imports no torch."""
