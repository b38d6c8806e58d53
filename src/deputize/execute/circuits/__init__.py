"""Pause calls to a failing service: a circuit breaker for each external service of a tenant."""
