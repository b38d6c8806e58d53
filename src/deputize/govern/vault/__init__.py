"""Secrets of tools: where they are kept, and how one is had for the length of a call."""
