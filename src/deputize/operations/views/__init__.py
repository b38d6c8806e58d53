"""Show read-only views of the gateway."""
