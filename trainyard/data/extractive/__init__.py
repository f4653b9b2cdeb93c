"""The extractive engine: question/answer pairs taken from documents by rule (`pairs.py`)."""
