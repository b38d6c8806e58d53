"""MCP servers as the product knows them: looked at, held against what was agreed to, reviewed by people."""
