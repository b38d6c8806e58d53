"""The proof kit, tested by itself."""
