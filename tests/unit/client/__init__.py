"""The client without a gateway."""
