"""Read the repository of the operator, and work on branches of the agent's own: `[builtin.git]`."""
