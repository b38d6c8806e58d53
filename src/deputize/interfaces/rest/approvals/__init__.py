"""Serve the REST routes on which people decide: approvals, human tasks, suggestions."""
