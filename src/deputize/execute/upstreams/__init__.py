"""Connect to upstream MCP servers over HTTP and stdio."""
