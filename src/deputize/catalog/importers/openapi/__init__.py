"""Convert OpenAPI documents into contracts; nothing here uses the network."""
