"""Declare how repeated, failing and long calls are handled: idempotency, retries, circuit breaker, limits of the
external service, checkpoints.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from deputize.core.contract.parts import ContractPart, SparsePart, omit_unset_fields

_DEFAULT_WAIT_SECONDS: Final = 5.0
_DEFAULT_WINDOW_SECONDS: Final = 60.0


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
    """When calls to the tool's external service pause, and when they go on."""

    failure_threshold: Annotated[int, Field(ge=1, le=100)] = 5
    window_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    success_threshold: Annotated[int, Field(ge=1, le=100)] = 3
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    half_open_max_calls: Annotated[int, Field(ge=1, le=100)] = 10

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset_fields(self, dump(self), "window_seconds")


class ServiceLimits(SparsePart):
    """How much is asked of the tool's external service, and how long a call waits for its turn."""

    max_concurrent: Annotated[int, Field(ge=1, le=1000)] | None = None
    max_waiting: Annotated[int, Field(ge=0, le=1000)] | None = None
    max_wait_seconds: Annotated[float, Field(ge=0, le=300)] | None = None
    max_calls: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    window_seconds: Annotated[float, Field(ge=1, le=86_400)] | None = None

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        if self.window_seconds is not None and self.max_calls is None:
            raise ValueError("window_seconds is the time of max_calls: set max_calls too")
        return self

    @property
    def effective_window_seconds(self) -> float:
        return _DEFAULT_WINDOW_SECONDS if self.window_seconds is None else self.window_seconds

    @property
    def effective_wait_seconds(self) -> float:
        return _DEFAULT_WAIT_SECONDS if self.max_wait_seconds is None else self.max_wait_seconds


class Checkpoints(ContractPart):
    """Whether and how often a run saves its state."""

    enabled: bool = False
    micro_interval_seconds: Annotated[int, Field(ge=10, le=300)] = 30
    macro_events: tuple[str, ...] = ()
