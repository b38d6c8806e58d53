"""Reach the runtime behind an open gateway. Tests may; interfaces see only the gateway's own methods and views."""

from deputize.app import get_lifecycle
from deputize.lifecycle.runtime import Runtime
from deputize.operations.gateway import Gateway

__all__ = ["get_lifecycle", "get_runtime"]


def get_runtime(gateway: Gateway) -> Runtime:
    """Return the services that a gateway's calls use: its store, keys, upstreams and clock."""
    return get_lifecycle(gateway).runtime
