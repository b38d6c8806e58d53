"""Describe the report of what was observed."""

from pydantic import BaseModel, Field

from deputize.interfaces.rest.models import Moment, RequestModel


class ObservationQuery(RequestModel):
    since: Moment | None = Field(None, description="Calls since this time; by default, of the last 7 days.")


class ObservedUseModel(BaseModel):
    """How often one caller called one tool."""

    user: str
    agents: list[str] = Field(description="The agents that acted, nearest first.")
    system: str = Field(description="The server behind the tool.")
    tool: str
    effects: str = Field(description="What the tool does as it was decided; empty if no policy decided.")
    inferred_effects: str = Field(description="What its name suggests, if no one has confirmed its effects.")
    calls: int
    failures: int
    refusals: int
    cost_micros: int = Field(description="What the calls were charged, in millionths.")


class DayCountModel(BaseModel):
    day_ms: int = Field(description="The beginning of the day in UTC, in milliseconds since 1970.")
    calls: int


class OddityModel(BaseModel):
    kind: str
    reason: str


class UnusualCallModel(BaseModel):
    call_id: str
    at_ms: int
    user: str
    agents: list[str]
    tool: str
    oddities: list[OddityModel] = Field(description="Why it is unusual; the how-to guide lists the kinds.")


class SeenSecretModel(BaseModel):
    """Where a secret was seen in an argument; its value is never recorded."""

    actor: str
    tool: str
    argument: str
    calls: int


class DraftedPolicyModel(BaseModel):
    """A first policy that allows the ordinary calls and asks about the rest. Nothing is active."""

    path: str
    calls: int = Field(description="How many ordinary calls it was drafted from.")
    text: str


class ObservationReportModel(BaseModel):
    since: str
    is_complete: bool = Field(description="False if there were more calls than a report takes; the newest count.")
    calls: int
    first_ms: int | None
    last_ms: int | None
    uses: list[ObservedUseModel] = Field(description="Who called what, most calls first, at most 500.")
    days: list[DayCountModel]
    hours: list[int] = Field(description="Calls by hour of the day, in UTC.")
    unusual_count: int
    unusual: list[UnusualCallModel] = Field(description="Unusual calls in the order of time, at most 500.")
    unusual_by_kind: dict[str, int]
    secrets: list[SeenSecretModel]
    policy: DraftedPolicyModel
