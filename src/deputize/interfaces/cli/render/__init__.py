"""Render results for the terminal."""
