"""Serve the REST routes for policies and kill switches."""
