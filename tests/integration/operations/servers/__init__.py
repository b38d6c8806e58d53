"""MCP servers as the product knows them, each a real one over HTTP."""
