"""Define the MCP terms that every package shares: constants, server settings, resources, elicitation."""
