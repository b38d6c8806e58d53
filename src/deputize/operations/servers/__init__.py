"""Import MCP servers' tools, monitor the servers, and let administrators review what they change."""
