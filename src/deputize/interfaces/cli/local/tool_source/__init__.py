"""Explain tool declarations in the words of Python, and write into tool files what is missing."""
