"""Serve the console: HTML pages without scripts, where people decide approval requests and link accounts."""
