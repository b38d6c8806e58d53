"""Describe the report of what calls cost."""

from typing import Literal

from pydantic import BaseModel, Field

from deputize.interfaces.rest.models import Moment, RequestModel

MAX_COST_GROUPS = 1000


class CostQuery(RequestModel):
    by: Literal["tool", "version", "caller", "task", "day"] = Field("tool", description="What costs are added up for.")
    since: Moment | None = Field(
        None,
        description="Costs since the day of this time, in UTC; by default, the last 7 days. They are kept for 92.",
    )
    limit: int = Field(
        100, ge=1, le=MAX_COST_GROUPS, description="Show at most so many groups of each currency, those that cost most."
    )


class CostComponentsModel(BaseModel):
    """What calls cost, by component."""

    compute: float
    external_api: float
    storage_io: float
    network: float
    token: float
    human_review: float


class CostUsageModel(BaseModel):
    """What calls used."""

    compute_seconds: float = Field(description="Time in tools.")
    storage_bytes: float = Field(description="As the tools report.")
    network_bytes: float = Field(description="As the tools report, else arguments and results of remote tools as JSON.")
    tokens: float = Field(description="As the tools report.")
    reviews: int = Field(description="Decisions of people on approval requests.")
    review_wait_seconds: float = Field(description="How long calls had waited when these were made.")


class CostGroupModel(BaseModel):
    name: str = Field(
        description="The tool, version, task, day or caller. Empty for calls without a task, and for callers beyond "
        "the first 5,000 combinations of a day."
    )
    user: str | None = Field(description="Of a caller: the user, or the pseudonym of one who was erased.")
    agents: list[str] = Field(description="Of a caller: the agents, nearest first.")
    cost: float
    costs: CostComponentsModel
    calls: int
    usage: CostUsageModel


class CurrencyCostModel(BaseModel):
    """Costs in one currency: different ones are never added up."""

    currency: str | None = Field(description="As the contracts say; null for tools whose contract names none.")
    cost: float
    costs: CostComponentsModel
    calls: int
    usage: CostUsageModel
    groups: list[CostGroupModel] = Field(description="Those that cost most first; the sums above are of all.")


class CostReportModel(BaseModel):
    by: Literal["tool", "version", "caller", "task", "day"]
    since: str = Field(description="The first day.")
    scope: Literal["tenant", "own"] = Field(description="Whether these are costs of the tenant, or of your own calls.")
    currencies: list[CurrencyCostModel]
