"""Read pages of hosts that the operator listed: `[builtin.web]`."""
