"""The shapes of a data row: one table, from the keys that a row has to the function that normalises it (`shapes.py`)."""
