"""What changed in a server's declarations since somebody agreed to them, and what in them should make one look."""
