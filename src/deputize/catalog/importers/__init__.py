"""Import tools as contracts from Python functions with `@tool`, manifests and MCP servers."""
