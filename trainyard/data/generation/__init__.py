"""The generator's work: rows from documents, by a language model or by rule (`generate.py`)."""
