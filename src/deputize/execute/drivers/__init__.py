"""Run tools with one driver per kind of handler: Python functions and MCP servers."""
