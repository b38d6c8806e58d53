"""Let people decide approval requests."""
