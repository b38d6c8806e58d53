"""Serve the REST API: plain ASGI for `POST /v1/calls`, FastAPI for all other routes, one OpenAPI document for both."""
