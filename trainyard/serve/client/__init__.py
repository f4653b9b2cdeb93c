"""The client of every OpenAI-compatible model server (`client.py`)."""
