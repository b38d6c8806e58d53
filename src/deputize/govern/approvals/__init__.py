"""Who decides what an agent may not do alone: pure functions about people, groups, votes and codes."""
