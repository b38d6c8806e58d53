"""Run tools: drivers, retries, hooks and outgoing network access. It imports none of its sibling packages."""
