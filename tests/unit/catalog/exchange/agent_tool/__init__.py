"""Test the objects of the tool standard."""
