"""Count calls and costs for limits: shared by replicas in Redis, or in the memory of one process."""
