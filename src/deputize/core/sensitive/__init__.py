"""Recognize secrets by the names of fields and by their shape in text."""
