"""Parts of the table of operations: what a row is, and the rows of families that are long."""
