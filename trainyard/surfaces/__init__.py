"""How operations are reached: command line, REST, MCP, Python, and the pages."""
