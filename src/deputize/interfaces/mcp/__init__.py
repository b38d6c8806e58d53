"""Serve MCP at `POST /mcp`, stateless (2026-07-28) and with the handshake of earlier versions; see `endpoint.py`."""
