"""Decide calls by the tenant's Cedar policies, and record each decision with its rules and inputs."""
