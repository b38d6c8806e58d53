"""Enforce limits: rates, concurrency, budgets and runaway loops."""
