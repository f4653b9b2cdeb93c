"""A node's work in pieces that several workers do, with the result of one process, byte for byte.

A piece is a few plain values: which rows or documents, and where. Rows never travel with it: its worker reads them from
the shared folder, writes what it found into a folder of its own there, and the caller merges the folders in order. What
looks at one row or document is done in the pieces; what looks at all of them (exact and near-duplicates, held-out sets,
decontamination, questions asked before) is done once, when they are merged.
"""
