"""Describe the reports of a tool's service levels and of the health of tools."""

from typing import Literal

from pydantic import BaseModel, Field

from deputize.core.contract.contract import LifecycleState, TimeoutClass
from deputize.interfaces.call_request import MAX_VERSION_LENGTH
from deputize.interfaces.rest.admin.circuits import CircuitModel
from deputize.interfaces.rest.models import RequestModel


class ServiceLevelsQuery(RequestModel):
    version: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_VERSION_LENGTH,
        description="An exact version. Default: all that were called.",
    )
    days: int = Field(7, ge=1, le=30, description="How many days to look back, today included; in UTC.")


class MeasuredEndsModel(BaseModel):
    """How the calls ended. Refusals, cancellations and mistakes of callers are not among them."""

    successes: int
    rejections: int = Field(description="The result failed its schema, a critical predicate or the tool's verify.")
    failures: int
    timeouts: int = Field(description="Also writes of which it is unknown whether they acted in time.")
    unknown_outcomes: int = Field(description="The connection was lost: it is unknown whether the tool acted.")


class MeasuredLatencyModel(BaseModel):
    """Seconds in the tool, of calls that returned a result or timed out; at most 9% off."""

    calls: int
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None


class ObjectiveModel(BaseModel):
    name: Literal["p99_seconds", "availability", "accuracy", "cost"]
    target: float | None = Field(description="What the contract declares.")
    value: float | None = Field(description="What was measured; of cost, the highest of one call.")
    status: Literal["met", "not-met", "not-declared", "too-few-calls", "not-measured"]
    calls: int
    needed_calls: int = Field(description="How many calls are needed to say that the objective is met.")
    reason: str


class TimeoutAdviceModel(BaseModel):
    current_class: TimeoutClass
    fitting_class: TimeoutClass | None = Field(description="The class that fits; null below needed_calls.")
    is_too_short: bool = Field(description="Calls time out, or the p99 is more than half of what the timeout allows.")
    needed_calls: int
    text: str


class VersionLevelsModel(BaseModel):
    version: str
    state: LifecycleState
    calls: int
    ends: MeasuredEndsModel
    latency: MeasuredLatencyModel
    timeout_share: float | None
    mean_cost: float | None
    objectives: list[ObjectiveModel]
    timeout: TimeoutAdviceModel


class ServiceLevelsModel(BaseModel):
    """What was measured of a tool, beside what its contracts declare; of more than 20 versions, those called most."""

    name: str
    days: int
    since: str = Field(description="The first day.")
    versions: list[VersionLevelsModel]


class HealthPenaltiesModel(BaseModel):
    """What is taken off the score."""

    errors: float = Field(description="Up to 0.5, at 10% of calls that did not succeed.")
    latency: float = Field(description="Up to 0.3, at a p99 of what the timeout class allows.")
    timeouts: float = Field(description="Up to 0.2, at 5% of calls that timed out.")


class HealthScoreModel(BaseModel):
    tool: str
    score: float = Field(ge=0, le=1, description="1 is perfect.")
    calls: int
    error_share: float = Field(description="The share of calls that did not succeed, timeouts among them.")
    timeout_share: float
    p99_seconds: float | None = Field(description="Of the version that is closest to its limit.")
    limit_seconds: float = Field(description="What the timeout class of that version allows.")
    penalties: HealthPenaltiesModel


class ToolHealthReport(BaseModel):
    """The tools that were called in the last minutes, the worst first; of more than 200, those with most errors."""

    minutes: int
    tools: list[HealthScoreModel]
    circuits: list[CircuitModel] = Field(description="Those of services whose calls are paused or tried again.")
