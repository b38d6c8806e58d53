"""Tools that quote what they are given, in every way in which a tool can say something."""

import logging
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deputize import Fact, Preview, Result, Sensitive, ToolConflict, ToolContext, UpstreamUnavailable, tool

_log = logging.getLogger("proof")

Note = Annotated[str, Field(description="A text of the caller's", examples=["hello"], max_length=4000)]
Word = Annotated[str, Sensitive("secret"), Field(description="A secret by its mark", examples=["w"], max_length=4000)]
Person = Annotated[str, Sensitive("pii"), Field(description="Personal by its mark", examples=["p"], max_length=4000)]
Extra = Annotated[dict[str, Any] | None, Field(description="Any fields", examples=[{"size": 3}])]
Way = Annotated[
    Literal["return", "summary", "raise", "conflict", "upstream", "log", "progress"],
    Field(description="How the tool quotes what it is given", examples=["return"]),
]


class Quote(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(description="What was given, in a sentence")]
    word: Word = ""
    extra: Extra = None


@tool(effects="read", namespace="leakage", returns=Quote, timeout=30.0)
async def look(
    way: Way, context: ToolContext, note: Note = "", word: Word = "", person: Person = "", extra: Extra = None
) -> Result:
    """Quote what is given, and change nothing."""
    return _quote(way, context, note, word, person, extra)


@tool(
    effects="write", namespace="leakage", returns=Quote, undo="leakage.look", resources=["create quotes"],
    scopes=["proof:write"], idempotency="cannot", timeout=30.0,
)  # fmt: skip
async def act(
    way: Way, context: ToolContext, note: Note = "", word: Word = "", person: Person = "", extra: Extra = None
) -> Result:
    """Quote what is given, as an act."""
    return _quote(way, context, note, word, person, extra)


def _preview_plea(
    way: str, note: str = "", word: str = "", person: str = "", extra: dict[str, Any] | None = None
) -> Preview:
    text = _join(note, word, person, extra)
    return Preview(changes=[{"resource": "quotes", "op": "create", "scope": "one", "before": text, "count": 1}])


@tool(
    effects="write", namespace="leakage", returns=Quote, undo="leakage.look", resources=["create quotes"],
    scopes=["proof:write"], idempotency="cannot", timeout=30.0, preview=_preview_plea,
)  # fmt: skip
async def plead(
    way: Way, context: ToolContext, note: Note = "", word: Word = "", person: Person = "", extra: Extra = None
) -> Result:
    """Quote what is given, after an approver allowed it."""
    return _quote(way, context, note, word, person, extra)


@tool(effects="read", namespace="leakage", timeout=30.0)
async def rank(label: Annotated[Note, Fact()]) -> int:
    """Take a text that policies read."""
    return len(label)


@tool(
    effects="write", namespace="leakage", undo="leakage.look", resources=["create quotes/{label}"],
    scopes=["proof:write"], idempotency="cannot", timeout=30.0,
)  # fmt: skip
async def place(label: Note) -> int:
    """Act upon something that has the text in its name."""
    return len(label)


def _join(note: str, word: str, person: str, extra: dict[str, Any] | None) -> str:
    return " ".join(filter(None, (note, word, person, repr(extra) if extra else "")))


def _quote(way: str, context: ToolContext, note: str, word: str, person: str, extra: dict[str, Any] | None) -> Result:
    text = _join(note, word, person, extra)
    match way:
        case "raise":
            try:
                raise LookupError(f"there is no {text}")
            except LookupError as error:
                raise ValueError(f"it was not taken: {text}") from error
        case "conflict":
            raise ToolConflict(f"{text} is taken", details={"what": text, "extra": extra or {}})
        case "upstream":
            raise UpstreamUnavailable(f"the upstream answered 500: {text}")
        case "log":
            # Of what a tool logs only the shape is known.
            _log.warning("took %s", text)
            _log.error("took it", exc_info=ValueError(text))
        case "progress":
            context.progress(1, 2, text)
            context.partial({"text": text, "word": word, "extra": extra or {}})
        case _:
            pass
    summary = text if way == "summary" else None
    return Result(payload={"text": text, "word": word, "extra": extra or {}}, summary=summary, search_text=summary)
