"""Reach behind an open gateway, for proofs that measure or change one part of it; interfaces cannot do this."""

from dataclasses import replace
from typing import Any

from deputize.app import get_lifecycle
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.runtime import Runtime
from deputize.operations.gateway import Gateway


def get_runtime(gateway: Gateway) -> Runtime:
    """Return the services that a gateway's calls use."""
    return get_lifecycle(gateway).runtime


def replace_runtime(gateway: Gateway, **changes: Any) -> Gateway:
    """Copy a gateway whose calls use other services, named as the fields of `Runtime`."""
    return replace(gateway, _lifecycle=Lifecycle(replace(get_runtime(gateway), **changes)))


def get_verifier(gateway: Gateway) -> TokenVerifier:
    """Return the verifier of a gateway's bearer tokens."""
    return gateway._tokens


def replace_verifier(gateway: Gateway, verifier: TokenVerifier) -> Gateway:
    """Copy a gateway that verifies bearer tokens in another way."""
    return replace(gateway, _tokens=verifier)
