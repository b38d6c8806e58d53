"""Compare the definitions of MCP servers with their pins, and flag what needs review."""
