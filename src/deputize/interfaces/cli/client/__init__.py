"""Talk to a running gateway over REST and MCP."""
