"""Who may, and who said so: identity, revocation, decisions. Knows nothing of the rooms beside it."""
