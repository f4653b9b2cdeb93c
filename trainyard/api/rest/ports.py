"""Where the API answers by default."""

NAME = "api"
"""Of its record and log among the services of a home."""
PORT = 8898
