"""Operate the gateway around calls: administration, approvals, servers, views, background loops."""
