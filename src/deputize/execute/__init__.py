"""Where tools really run: drivers, retries, the one way out to the network. Knows nothing of the rooms beside it."""
