"""Tools that do what a test tells them to: each takes a tag, and behaves as `on(tag, ...)` says."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, cast

from pydantic import Field

from deputize import Preview, Sensitive, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool

Tag = Annotated[str, Field(description="Which test this belongs to", examples=["a"])]
Count = Annotated[int, Field(description="How many", ge=0, examples=[3])]
Behaviour = Callable[[ToolContext], Any]


class Effect(NamedTuple):
    tool: str
    tag: str
    key: str
    attempt: int


effects: list[Effect] = []
"""What the tools were really asked to do, in order."""
_behaviours: dict[str, Behaviour] = {}


def set_behaviour(tag: str, behaviour: Behaviour) -> None:
    """What a tool called with this tag does, and answers."""
    _behaviours[tag] = behaviour


def raise_error(error: BaseException) -> Behaviour:
    def behave(_: ToolContext) -> Any:
        raise error

    return behave


def list_effects(tag: str) -> list[Effect]:
    return [effect for effect in effects if effect.tag == tag]


class Gate:
    """A behaviour that says when it began, and ends when told to."""

    def __init__(self, answer: Any = None) -> None:
        self.began, self.open = asyncio.Event(), asyncio.Event()
        self._answer = {"value": "done"} if answer is None else answer

    async def __call__(self, context: ToolContext) -> Any:
        self.began.set()
        await self.open.wait()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


async def _behave(name: str, tag: str, context: ToolContext) -> dict[str, Any]:
    effects.append(Effect(name, tag, context.key, context.attempt))
    behaviour = _behaviours.get(tag)
    if behaviour is None:
        return {"value": tag}
    answer = behaviour(context)
    # What a test makes a tool answer may be anything.
    return cast(dict[str, Any], await answer if inspect.isawaitable(answer) else answer)


RETRY: dict[str, Any] = {"max_attempts": 3, "base_seconds": 0.001}
# So much that no test runs out of it on a busy machine while a gate holds its tool.
AMPLE_SECONDS = 60.0
# Tests wait until this is over, and a call has to reach its tool within it.
BRIEF_SECONDS = 4.0
WRITE_OPTIONS: dict[str, Any] = {
    "scopes": ["lab:write"], "namespace": "lab", "retry": RETRY, "undo": "lab.note", "timeout": AMPLE_SECONDS,
}  # fmt: skip
BRIEF_WRITE_OPTIONS: dict[str, Any] = {**WRITE_OPTIONS, "timeout": BRIEF_SECONDS}


@tool(effects="read", namespace="lab", retry=RETRY, timeout=AMPLE_SECONDS)
async def look(tag: Tag, context: ToolContext, count: Count = 1) -> dict[str, Any]:
    """Look at something and change nothing."""
    return await _behave("look", tag, context)


@tool(effects="read", namespace="lab", timeout=BRIEF_SECONDS, retry=RETRY)
async def brief_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something in very little time."""
    return await _behave("brief_look", tag, context)


@tool(effects="read", namespace="lab", timeout=600.0)
async def crawl(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Take longer than anybody waits for."""
    return await _behave("crawl", tag, context)


@tool(effects="write", resources=["update lab.values/{tag}"], idempotency="deduplicates", **WRITE_OPTIONS)
async def put(tag: Tag, context: ToolContext, count: Count = 1) -> dict[str, Any]:
    """Put a value where the system behind takes each key once."""
    return await _behave("put", tag, context)


@tool(effects="write", resources=["update lab.values/{tag}"], idempotency="idempotent", **WRITE_OPTIONS)
async def assign(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Assign a value, which twice is the same as once."""
    return await _behave("assign", tag, context)


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", **WRITE_OPTIONS)
async def note(tag: Tag, context: ToolContext, count: Count = 1) -> dict[str, Any]:
    """Write a note, twice if asked twice."""
    return await _behave("note", tag, context)


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", **BRIEF_WRITE_OPTIONS)
async def brief_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note in very little time."""
    return await _behave("brief_note", tag, context)


previews: dict[str, Callable[[ToolContext], Any]] = {}
"""What the preview of `erase` answers, by tag."""


async def _preview_erase(tag: str, context: ToolContext) -> Any:
    if tag not in previews:
        return Preview(changes=[{"resource": "lab.notes", "op": "delete", "scope": tag, "count": 1}])
    answer = previews[tag](context)
    return await answer if inspect.isawaitable(answer) else answer


@tool(
    effects="destructive",
    namespace="lab",
    resources=["delete lab.notes/{tag}"],
    scopes=["lab:write"],
    preview=_preview_erase,
    preview_volatile=["/impact/seen_at"],
    timeout=AMPLE_SECONDS,
)
async def erase(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Erase a note for good."""
    return await _behave("erase", tag, context)


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", **BRIEF_WRITE_OPTIONS)
def thread_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note in a thread, which cannot be stopped."""
    effects.append(Effect("thread_note", tag, context.key, context.attempt))
    answer: dict[str, Any] = _behaviours[tag](context)
    return answer


@tool(effects="write", resources=["update lab.values/{tag}"], idempotency="deduplicates", **WRITE_OPTIONS)
def thread_put(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Put a value in a thread, where the system behind takes each key once."""
    effects.append(Effect("thread_put", tag, context.key, context.attempt))
    answer: dict[str, Any] = _behaviours[tag](context)
    return answer


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", **WRITE_OPTIONS)
def slow_thread_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note in a thread, and take a while."""
    effects.append(Effect("slow_thread_note", tag, context.key, context.attempt))
    answer: dict[str, Any] = _behaviours[tag](context)
    return answer


checked_tags: list[str] = []
"""Tags the tool's own validation was asked about, in order."""
precondition_errors: dict[str, Exception] = {}
"""What it answers, where it does not agree."""
postcondition_errors: dict[str, Exception] = {}
"""What the tool's own verification raises, by tag."""


def _check_precondition(tag: str) -> None:
    checked_tags.append(tag)
    if tag in precondition_errors:
        raise precondition_errors[tag]


async def _check_postcondition(arguments: dict[str, Any], output: Any) -> None:
    if arguments["tag"] in postcondition_errors:
        raise postcondition_errors[arguments["tag"]]


@tool(
    effects="write",
    resources=["create lab.notes/{tag}"],
    idempotency="cannot",
    validate=_check_precondition,
    verify=_check_postcondition,
    predicates=[
        {"name": "small", "holds": {"properties": {"output": {"properties": {"size": {"maximum": 10}}}}}},
        {
            "name": "usual",
            "description": "it is larger than most",
            "holds": {"properties": {"output": {"properties": {"size": {"maximum": 8}}}}},
            "severity": "warning",
        },
    ],
    **WRITE_OPTIONS,
)
async def checked_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note that is judged before and after."""
    return await _behave("checked_note", tag, context)


@tool(
    effects="write",
    resources=["update lab.values/{tag}"],
    idempotency="deduplicates",
    validate=_check_precondition,
    **WRITE_OPTIONS,
)
async def checked_put(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Put a value that is judged before."""
    return await _behave("checked_put", tag, context)


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", **WRITE_OPTIONS)
async def enrol(
    tag: Tag,
    email: Annotated[str, Field(description="Whom to write to", examples=["a@b.example"]), Sensitive("pii")],
    password: Annotated[str, Field(description="What opens the door", examples=["x"])],
    context: ToolContext,
) -> dict[str, Any]:
    """Enrol a person, with an address and a password."""
    return await _behave("enrol", tag, context)


@tool(
    effects="write",
    resources=["update lab.values/{tag}"],
    idempotency="deduplicates",
    concurrency_safe=True,
    **WRITE_OPTIONS,
)
async def tally(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Count one up, which any number of calls may do at once."""
    return await _behave("tally", tag, context)


@tool(effects="read", namespace="lab", timeout=AMPLE_SECONDS, interrupt="cancel")
async def scan(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something, until interrupted."""
    return await _behave("scan", tag, context)


@tool(effects="read", namespace="lab", timeout=AMPLE_SECONDS, interrupt="block")
async def survey(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something to the end."""
    return await _behave("survey", tag, context)


@tool(effects="write", resources=["update lab.values/{tag}"], idempotency="cannot", interrupt="cancel", **WRITE_OPTIONS)
async def brew(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Change something, until interrupted."""
    return await _behave("brew", tag, context)


TOOLS: list[PythonTool] = [
    getattr(each, ATTRIBUTE)
    for each in (
        look, brief_look, crawl, put, assign, note, brief_note, erase, thread_note, thread_put, slow_thread_note,
        checked_note, checked_put, enrol, tally, scan, survey, brew,
    )
]  # fmt: skip
