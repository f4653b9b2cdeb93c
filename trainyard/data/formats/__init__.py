"""The shapes of a data row: from the keys that a row has to the function that normalises it (`shapes.py`)."""
