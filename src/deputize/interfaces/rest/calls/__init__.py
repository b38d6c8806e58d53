"""Serve the REST routes for calls."""
