"""Counters that limits stand on: shared by replicas through Redis, or kept by a process that is alone."""
