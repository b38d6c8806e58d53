"""Carry a server's questions to the caller and the answers back."""
