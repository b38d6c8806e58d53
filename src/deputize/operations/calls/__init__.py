"""Query, cancel, roll back and answer calls."""
