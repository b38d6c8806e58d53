"""What outlives a request: leases of processes, and the sweeper that finds what the dead left open."""
