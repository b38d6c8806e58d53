"""Serve the administrative REST routes: tools, secrets, grants, servers, webhooks, surface."""
