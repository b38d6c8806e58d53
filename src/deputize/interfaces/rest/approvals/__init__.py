"""Serve the REST routes on which people decide: approvals, reconciliation tasks, suggestions."""
