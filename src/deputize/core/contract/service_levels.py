"""Declare what is recorded of calls, what they cost, and the service levels that a tool promises."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from deputize.core.contract.parts import ContractPart, SparsePart, omit_unset_fields
from deputize.core.contract.prices import Prices

Share = Annotated[float, Field(gt=0, le=1)]
# What the rules of Prometheus look at; other windows of alerts are not enforced.
ALERT_WINDOW_SECONDS: Final = 900


class Observability(ContractPart):
    """What is recorded of calls, and what they cost."""

    trace: Literal[True] = True
    metrics: Literal[True] = True
    audit: Literal[True] = True
    cost_category: Literal["compute", "api", "tokens"] = "compute"
    cost_per_call: Annotated[float, Field(ge=0)] = 0.0
    # In addition, for what a call uses; the currency is also that of cost_per_call.
    prices: Prices | None = None

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset_fields(self, dump(self), "prices")

    @property
    def currency(self) -> str:
        """The currency of the tool's costs; empty if its contract names none."""
        return "" if self.prices is None else self.prices.currency


class Objectives(SparsePart):
    """The service levels a tool promises: latency, shares of successful calls and of correct results, and cost."""

    p99_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    availability: Share | None = None
    accuracy: Share | None = None
    # Of one call, in the unit of cost_per_call.
    cost: Annotated[float, Field(ge=0)] | None = None


class Alerts(SparsePart):
    """The thresholds above which a tool's owner is told, over a window. They are a metric, which the rules of
    Prometheus compare with what is measured.
    """

    window_seconds: Annotated[int, Field(ge=60, le=86_400)] = ALERT_WINDOW_SECONDS
    error_rate: Share | None = None
    timeout_rate: Share | None = None
    # How many times the usual p99 latency.
    latency_factor: Annotated[float, Field(gt=1, le=100)] | None = None
    pending_approvals: Annotated[int, Field(ge=1, le=100_000)] | None = None

    def list_thresholds(self) -> Iterator[tuple[str, float]]:
        """List the thresholds that are set, by their names."""
        for name in ("error_rate", "timeout_rate", "latency_factor", "pending_approvals"):
            if (value := getattr(self, name)) is not None:
                yield name, value
