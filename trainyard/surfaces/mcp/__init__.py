"""The operations as tools of the Model Context Protocol: `trainyard mcp` over stdio, and /mcp over HTTP."""
