"""Define the request and response models of MCP servers."""

from typing import Annotated, Any, Literal

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


class EffectChoiceBody(RequestModel):
    tool: str = Field(min_length=1, max_length=1024, description="The tool, by the server's own name for it.")
    digest: str = Field(pattern="^sha256:[0-9a-f]{64}$", description="The digest of the definition that was read.")
    effects: Literal["read", "write", "destructive"] = Field(
        description="`read` changes nothing, the changes of `write` can be undone."
    )


class ConfirmEffectsBody(RequestModel):
    choices: list[EffectChoiceBody] = Field(
        alias="tools", min_length=1, max_length=1000, description="What each tool does."
    )


class ServerToolModel(BaseModel):
    item: str
    name: str = Field(description="The server's own name for it.")
    display_name: str = Field(description="The name, with hidden characters made visible.")
    digest: str
    tool: str = Field(description="The name that it is registered under.")
    version: str
    definition: dict[str, Any] = Field(description="The pinned definition, as the server declared it.")
    effects: Literal["read", "write", "destructive"] | None = Field(
        description="What calls are decided by; null if this gateway does not know the registered version yet."
    )
    source: Literal["settings", "confirmed", "unconfirmed", "protocol"] = Field(
        description="Who says so: `[[servers]]`, an operator who confirmed it, no one, or MCP itself."
    )
    confirmed_effects: Literal["read", "write", "destructive"] | None = Field(
        description="What was confirmed for this definition."
    )
    proposed_effects: Literal["read", "write", "destructive"] | None = Field(
        description="What the server's annotations and the name suggest."
    )
    why: str | None = Field(description="What the proposal is derived from.")
    facts: list[str] = Field(description="The facts that policies may read.")


class ServerToolListModel(BaseModel):
    tools: list[ServerToolModel]


class ConfirmedEffectModel(BaseModel):
    tool: str
    digest: str
    effects: Literal["read", "write", "destructive"]
    registered_tool: str | None = Field(description="`name@version` of the new version; null if nothing changed.")


class ConfirmedEffectListModel(BaseModel):
    tools: list[ConfirmedEffectModel]


class ServerSummaryModel(BaseModel):
    name: str
    kind: Literal["http", "stdio"]
    address: str = Field(description="Its URL, or the command that starts it.")
    sandbox: Literal["none", "namespaces", "gvisor"] | None = Field(
        description="What isolates its program from the host; null for a server with a URL."
    )
    credential: Literal["none", "vault", "delegated"]
    status: ServerStatus = Field(description="The result of this gateway's last probe.")
    since: str | None
    probed_at: str | None
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
    pins: list[PinModel]
    left_out: list[str] = Field(description="The first invalid definitions that it declares, each with the reason.")
    refused_hosts: list[str] = Field(
        description="The hosts that its program wanted to connect to from its sandbox, and may not."
    )


class ServerProbeResult(ServerModel):
    registered_tools: list[str] = Field(description="The tools that this probe registered.")
    new_changes: int = Field(description="The number of changes that this probe found.")


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
    display_item: str = Field(description="The item, with hidden characters made visible.")
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
    registered_tool: str | None = Field(description="`name@version` of the registered tool.")
