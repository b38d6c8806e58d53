"""Run calls that outlive their request: process leases, the durable engine and checkpoints."""
