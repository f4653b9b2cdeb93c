"""The REST API of one machine: `trainyard serve --role training --port 8898`, a loop over the table of operations."""
