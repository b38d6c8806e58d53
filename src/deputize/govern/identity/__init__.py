"""Turn a bearer token into a `Caller`: verify signature, claims and tenant, and check revocations."""
