"""Doors without a gateway."""
