"""Interfaces without a gateway."""
