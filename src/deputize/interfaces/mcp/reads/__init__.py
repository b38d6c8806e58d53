"""Serve MCP resources, prompts and completions from upstream servers."""
