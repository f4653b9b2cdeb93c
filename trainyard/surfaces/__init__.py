"""Surfaces of the operations: command line, REST, MCP, Python, and the pages."""
