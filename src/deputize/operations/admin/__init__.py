"""Perform audited administrative acts."""
