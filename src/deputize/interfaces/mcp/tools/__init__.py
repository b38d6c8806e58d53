"""Serve MCP tools/list and tools/call."""
