"""Tools whose outcomes get lost: what each does is told by `on(tag, ...)`, what its status answers by `answers`."""

from typing import Annotated, Any

from pydantic import Field

from deputize import Sensitive, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from tests.support.scripted_tools import AMPLE_SECONDS, Tag, _behave

# Valid with every text of `a`, which takes some thousand steps for each character.
COSTLY_PATTERN = "^[ab]*a?[ab]{0,900}$"
Key = Annotated[str, Field(description="The key of the call it is about", examples=["k"])]
WRITE_OPTIONS: dict[str, Any] = {
    "scopes": ["lab:write"],
    "namespace": "lab",
    "retry": {"max_attempts": 1},
    "undo": "lab.send",
    "resources": ["create lab.parcels/{tag}"],
    "timeout": AMPLE_SECONDS,
}

status_answers: dict[str, Any] = {}
"""What the status answers by key; a problem is raised."""
status_requests: list[tuple[str, str, str]] = []
"""Key, user and agent of everything the status was asked."""


@tool(effects="read", namespace="lab", scopes=["lab:read_status"], retry={"max_attempts": 1}, timeout=AMPLE_SECONDS)
async def track_parcel(key: Key, context: ToolContext) -> Any:
    """Tell what became of a parcel."""
    status_requests.append((key, context.user, context.agent))
    answer = status_answers.get(key, {"state": "unknown"})
    if isinstance(answer, Exception):
        raise answer
    return answer


@tool(effects="write", idempotency="cannot", status="lab.track_parcel", **WRITE_OPTIONS)
async def send(
    tag: Tag,
    context: ToolContext,
    password: Annotated[str, Sensitive("secret"), Field(description="What opens it", examples=["x"])] = "",
) -> dict[str, Any]:
    """Send a parcel that can be tracked."""
    return await _behave("send", tag, context)


@tool(effects="write", idempotency="cannot", status="lab.track_parcel", **WRITE_OPTIONS)
async def label(tag: Tag, context: ToolContext) -> Annotated[str, Field(pattern=COSTLY_PATTERN)]:
    """Send a parcel whose label is costly to check."""
    return str(await _behave("label", tag, context))


@tool(effects="write", idempotency="cannot", **WRITE_OPTIONS)
async def drop(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Send a parcel that cannot be tracked."""
    return await _behave("drop", tag, context)


@tool(
    effects="write",
    idempotency="deduplicates",
    checkpoints={"enabled": True},
    **WRITE_OPTIONS,
)
async def register(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Register a parcel where a repeated key counts once, saving on the way."""
    return await _behave("register", tag, context)


TOOLS: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in (send, label, drop, register, track_parcel)]
