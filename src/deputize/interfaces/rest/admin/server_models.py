"""Define the request and response models of MCP servers."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from deputize.interfaces.rest.models import RequestModel

ServerStatus = Literal["connected", "unavailable", "unseen"]
ChangeState = Literal["open", "accepted", "rejected", "gone"]
ChangeKind = Literal["changed", "added", "removed", "flagged"]
# A removed definition has no content, and so no digest.
ChangeDigest = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64}|ambiguous)?$")]


class ServerChangesQuery(RequestModel):
    state: ChangeState | Literal["all"] = Field(
        "open", description="List changes in this state; `open` ones wait for a review."
    )
    limit: int = Field(200, ge=1, le=2000, description="The maximum number to return.")


class ServerChangeDecisionBody(RequestModel):
    item: str = Field(
        min_length=1,
        max_length=1100,
        description="`tool:NAME`, `resource:URI`, `template:URI`, `prompt:NAME`, `method:NAME` or `instructions`.",
    )
    digest: ChangeDigest = Field(
        description="The digest of the content to decide about; empty for a removed definition."
    )
    decision: Literal["accept", "reject"] = Field(
        description="`accept` registers it as the next version; `reject` keeps the pinned one."
    )
    reason: str = Field("", max_length=2000, description="Stored with the decision; required to reject.")


class ServerSummaryModel(BaseModel):
    name: str
    kind: Literal["http", "stdio"]
    address: str = Field(description="Its URL, or the command that starts it.")
    credential: Literal["none", "vault", "delegated"]
    status: ServerStatus = Field(description="The result of this gateway's last probe.")
    since: str | None
    looked_at: str | None
    why: str | None = Field(description="Why it is unavailable.")
    protocol: str | None
    title: str | None
    version: str | None
    tools: int = Field(description="The number of its registered tools.")
    changes: int = Field(description="The number of changes that wait for a review.")


class ServerListModel(BaseModel):
    servers: list[ServerSummaryModel]


class PinModel(BaseModel):
    item: str
    digest: str
    tool: str | None
    version: str | None
    accepted_by: str
    accepted_at: str
    now: Literal["same", "changed", "removed"] | None = Field(
        description="How the server's current definition compares; null while it is not connected."
    )


class ServerModel(ServerSummaryModel):
    review: Literal["changes", "everything"]
    probe_seconds: float
    pins: list[PinModel] = Field(alias="agreed")
    left_out: list[str] = Field(description="The first invalid definitions that it declares, each with the reason.")


class ServerProbeResult(ServerModel):
    registered_tools: list[str] = Field(alias="registered", description="The tools that this probe registered.")
    new_changes: int = Field(alias="opened", description="The number of changes that this probe found.")


class ChangeFlagModel(BaseModel):
    code: str
    where: str = Field(description="A JSON pointer into the definition.")
    excerpt: str = Field(description="The text there, with hidden characters made visible.")
    sentence: str


class DifferenceModel(BaseModel):
    where: str
    before: str | None
    after: str | None


class ServerChangeModel(BaseModel):
    item: str
    display_item: str = Field(alias="shown", description="The item, with hidden characters made visible.")
    digest: str
    kind: ChangeKind
    state: ChangeState
    tool: str | None = Field(description="The registered tool of the pinned definition.")
    version: str | None
    seen_at: str
    flags: list[ChangeFlagModel]
    differences: list[DifferenceModel]
    decided_by: str | None
    decided_at: str | None
    reason: str | None


class ServerChangeListModel(BaseModel):
    changes: list[ServerChangeModel]


class ServerChangeDecisionResult(BaseModel):
    server: str
    item: str
    digest: str
    decision: Literal["accept", "reject"]
    registered_tool: str | None = Field(alias="registered", description="`name@version` of the registered tool.")
