"""Write the configuration of MCP clients, and take it back."""
