"""List what keeps a tool from being called: fields that this release does not enforce yet, and a missing handler.

A declaration that nothing obeys would be a promise that is not kept, so a tool with one cannot be called: it requires
setup. Values that equal the default declare nothing.
"""

from collections.abc import Sequence
from typing import Final

from deputize.core.contract.contract import CircuitBreaker, Contract
from deputize.core.contract.handler import NO_DRIVER
from deputize.core.contract.service_levels import ALERT_WINDOW_SECONDS

# Fields that are kept as declared and that nothing reads yet.
RESERVED_FIELDS: Final = (
    "limits", "sandbox", "recipient_argument", "labels",
)  # fmt: skip

# Drivers that reach one host, which they compare with `network`; code of this process can reach any.
_NETWORK_DRIVERS: Final = frozenset({"http", "grpc", "mcp", "command"})
# Commands run in sandboxes, which hold these.
_SANDBOX_FIELDS: Final = ("limits", "sandbox")


def list_unenforced_fields(contract: Contract) -> tuple[str, ...]:
    """List the paths of the fields that are set and not enforced, first a handler that names no code."""
    names = [each for each in RESERVED_FIELDS if getattr(contract, each) != Contract.model_fields[each].default]
    if contract.handler.driver == "command":
        names = [each for each in names if each not in _SANDBOX_FIELDS]
    if contract.handler.driver not in _NETWORK_DRIVERS and contract.limits_network:
        names.append("network")
    if contract.alerts is not None and contract.alerts.window_seconds != ALERT_WINDOW_SECONDS:
        # The rules of Prometheus look at one window for all tools.
        names.append("alerts/window_seconds")
    if contract.external_service is None and contract.breaker != CircuitBreaker():
        # Nothing says whose failures it would count.
        names.insert(0, "breaker")
    if contract.external_service is None and contract.service_limits is not None:
        # Nothing says whose calls they would count.
        names.insert(0, "service_limits")
    return tuple(f"/{each}" for each in (["handler"] if contract.handler.driver == NO_DRIVER else []) + names)


def describe_missing_setup(fields: Sequence[str]) -> str:
    """Describe why a tool with these unenforced fields cannot be called."""
    sentences = []
    if "/handler" in fields:
        sentences.append("is connected to no code (/handler)")
    if "/breaker" in fields:
        sentences.append("declares a circuit breaker (/breaker) and no service that it is for (/external_service)")
    if "/service_limits" in fields:
        sentences.append("declares limits of a service (/service_limits) and no service (/external_service)")
    names = [each for each in fields if each not in ("/handler", "/breaker", "/service_limits")]
    if names:
        sentences.append(f"declares what this gateway does not enforce: {', '.join(names)}")
    return " and ".join(sentences)
