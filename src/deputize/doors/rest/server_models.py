"""The shapes of the routes about MCP servers."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from deputize.doors.rest.models import Asked

ServerStatus = Literal["connected", "unavailable", "unseen"]
ChangeState = Literal["open", "accepted", "rejected", "gone"]
ChangeKind = Literal["changed", "added", "removed", "flagged"]
# Of what is gone there is no content, and so no digest.
ChangeDigest = Annotated[str, Field(pattern="^(sha256:[0-9a-f]{64}|ambiguous)?$")]


class ChangesQuery(Asked):
    state: ChangeState | Literal["all"] = Field("open", description="Which ones; those that wait for a review.")
    limit: int = Field(200, ge=1, le=2000, description="How many at most.")


class ChangeDecided(Asked):
    item: str = Field(
        min_length=1,
        max_length=1100,
        description="`tool:NAME`, `resource:URI`, `template:URI`, `prompt:NAME`, `method:NAME` or `instructions`.",
    )
    digest: ChangeDigest = Field(description="What exactly is decided about; empty for what was removed.")
    decision: Literal["accept", "reject"] = Field(
        description="Accepted, it is registered as the next version; rejected, what was agreed to stays."
    )
    reason: str = Field("", max_length=2000, description="Kept; needed to reject.")


class ServerBrief(BaseModel):
    name: str
    kind: Literal["http", "stdio"]
    address: str = Field(description="Its URL, or the program that is started.")
    credential: Literal["none", "vault", "delegated"]
    status: ServerStatus = Field(description="As this gateway found it when it last looked.")
    since: str | None
    looked_at: str | None
    why: str | None = Field(description="Why it is unavailable.")
    protocol: str | None
    title: str | None
    version: str | None
    tools: int = Field(description="Tools of it that are registered.")
    changes: int = Field(description="Changes that wait for a review.")


class ServersListed(BaseModel):
    servers: list[ServerBrief]


class ItemAgreed(BaseModel):
    item: str
    digest: str
    tool: str | None
    version: str | None
    accepted_by: str
    accepted_at: str
    now: Literal["same", "changed", "removed"] | None = Field(
        description="What the server says of it now; null while it is not connected."
    )


class ServerShown(ServerBrief):
    review: Literal["changes", "everything"]
    probe_seconds: float
    agreed: list[ItemAgreed]
    left_out: list[str] = Field(description="What it declares that is no definition, and why; the first of it.")


class ServerTested(ServerShown):
    registered: list[str] = Field(description="Tools that this look registered.")
    opened: int = Field(description="Changes that this look opened.")


class FlagShown(BaseModel):
    code: str
    where: str = Field(description="A JSON pointer into the definition.")
    excerpt: str = Field(description="The place itself, with everything hidden made visible.")
    sentence: str


class DifferenceShown(BaseModel):
    where: str
    before: str | None
    after: str | None


class ServerChangeShown(BaseModel):
    item: str
    shown: str = Field(description="The item with everything hidden made visible.")
    digest: str
    kind: ChangeKind
    state: ChangeState
    tool: str | None = Field(description="What is registered of what was agreed to before.")
    version: str | None
    seen_at: str
    flags: list[FlagShown]
    differences: list[DifferenceShown]
    decided_by: str | None
    decided_at: str | None
    reason: str | None


class ChangesListed(BaseModel):
    changes: list[ServerChangeShown]


class ChangeDone(BaseModel):
    server: str
    item: str
    digest: str
    decision: Literal["accept", "reject"]
    registered: str | None = Field(description="`name@version` of what was registered.")
