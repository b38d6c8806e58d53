"""Test the exchange of tools with other systems."""
