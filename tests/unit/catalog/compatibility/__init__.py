"""Test what a new version of a tool is to its callers."""
