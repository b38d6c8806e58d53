"""Servers elsewhere that speak MCP, and the lines to them."""
