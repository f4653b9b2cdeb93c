"""From a document to the entities and relations it names (`extraction.py`), by a model or by rule (`rules.py`)."""
