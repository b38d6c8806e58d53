"""Serve the audit: search, show, follow and export entries."""
