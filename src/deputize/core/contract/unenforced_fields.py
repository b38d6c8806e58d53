"""List what a contract declares and this release does not enforce yet.

A declaration that nothing obeys would be a promise that is not kept, so a tool with one cannot be called: it requires
setup. Values that equal the default declare nothing.
"""

from collections.abc import Mapping
from typing import Any

from deputize.core.contract.contract import (
    DEFAULT_ERROR_SCHEMA,
    Checkpoints,
    CircuitBreaker,
    Contract,
    NetworkPolicy,
    ResourceLimits,
    RetryPolicy,
)

_DEFAULTS: Mapping[str, Any] = {
    "/breaker": CircuitBreaker(),
    "/limits": ResourceLimits(),
    "/network": NetworkPolicy(),
    "/retry/retry_on_status_codes": RetryPolicy().retry_on_status_codes,
    "/checkpoints/macro_events": Checkpoints().macro_events,
    "/error_schema": DEFAULT_ERROR_SCHEMA,
}


def list_unenforced_fields(contract: Contract) -> tuple[str, ...]:
    """List the paths of the fields that are set and not enforced."""
    values = {
        "/breaker": contract.breaker,
        "/limits": contract.limits,
        "/network": contract.network,
        "/retry/retry_on_status_codes": contract.retry.retry_on_status_codes,
        "/checkpoints/macro_events": contract.checkpoints.macro_events,
        "/error_schema": contract.error_schema,
    }
    return tuple(path for path, default in _DEFAULTS.items() if values[path] != default)
