"""Obtain OAuth tokens for MCP servers: for a person's linked account, or for the gateway itself."""
