"""From a bearer token to a `Caller`: signature, claims, tenant, and what has been revoked since."""
