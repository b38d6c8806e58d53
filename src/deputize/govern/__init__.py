"""Govern calls: identity, policy, approvals, limits, secrets and kill switches. Independent of its sibling packages."""
