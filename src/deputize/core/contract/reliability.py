"""Declare how repeated, failing and long calls are handled: idempotency, retries, circuit breaker, checkpoints."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from deputize.core.contract.parts import ContractPart


class UpstreamIdempotency(StrEnum):
    """What the system behind a tool does with a repeated idempotency key."""

    DEDUPLICATES = "deduplicates"
    IDEMPOTENT = "idempotent"
    CANNOT = "cannot"


class Idempotency(ContractPart):
    """How a repeated call is recognized, here and upstream."""

    upstream: UpstreamIdempotency = UpstreamIdempotency.CANNOT
    window_seconds: Annotated[int, Field(ge=60, le=30 * 86_400)] | None = None
    key_argument: str | None = None


class RetryPolicy(ContractPart):
    """When and how often an attempt is repeated."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    base_seconds: Annotated[float, Field(gt=0, le=60)] = 0.1
    backoff_multiplier: Annotated[float, Field(ge=1, le=10)] = 2.0
    backoff_max_seconds: Annotated[float, Field(gt=0, le=300)] = 60.0
    retry_on_status_codes: tuple[Annotated[int, Field(ge=400, le=599)], ...] = (429, 500, 502, 503, 504)


class CircuitBreaker(ContractPart):
    """When calls to a failing upstream pause."""

    failure_threshold: Annotated[int, Field(ge=1, le=100)] = 5
    success_threshold: Annotated[int, Field(ge=1, le=100)] = 3
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    half_open_max_calls: Annotated[int, Field(ge=1, le=100)] = 10


class Checkpoints(ContractPart):
    """Whether and how often a run saves its state."""

    enabled: bool = False
    micro_interval_seconds: Annotated[int, Field(ge=10, le=300)] = 30
    macro_events: tuple[str, ...] = ()
