"""MCP at `POST /mcp`, in both of its eras. `door.py` is where a request comes in."""
