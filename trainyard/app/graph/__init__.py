"""The knowledge graph for requests."""
