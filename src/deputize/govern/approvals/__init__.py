"""Decide who may approve a call: pure functions over people, groups, votes and approval codes."""
