"""The engine: eight verbs over one model (`session.py`)."""
