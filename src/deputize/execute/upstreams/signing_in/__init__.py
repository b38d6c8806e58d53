"""Signing in to MCP servers over OAuth: for a person who links an account of theirs, or as this gateway itself."""
