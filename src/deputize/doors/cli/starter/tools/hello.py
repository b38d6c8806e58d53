"""Three tools to start from. Change them, add your own, and start `deputize dev` again.

The file's name is the first half of each tool's name: `greet` below is called as `hello.greet`.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deputize import Preview, ToolConflict, ToolContext, tool

NOTES = Path("notes.txt")
_one_at_a_time = threading.Lock()


@dataclass
class Note:
    number: int
    text: str


@tool(effects="read", examples=[{"name": "Ana"}])
def greet(name: str) -> str:
    """Say hello to somebody.

    Args:
        name: Who to greet.
    """
    return f"Hello, {name}!"


@tool(
    effects="write",
    resources=["create notes"],
    undo="hello.forget",
    scopes=["notes:write"],
    examples=[{"text": "buy milk"}],
)
def remember(text: str) -> Note:
    """Write a note at the end of notes.txt.

    A call is made once per idempotency key, so repeating one after a lost connection adds no second note.

    Args:
        text: The note, in one line.
    """
    with _one_at_a_time:
        lines = _lines()
        NOTES.write_text("\n".join([*lines, " ".join(text.split())]) + "\n", encoding="utf-8")
        return Note(number=len(lines) + 1, text=text)


def _must_exist(number: int) -> None:
    if number > len(_lines()):
        raise ValueError(f"there is no note {number}")


def _would_be_gone(number: int) -> Preview:
    """What whoever decides about `forget` gets to see. The guard comes back to it when it is done."""
    text = _lines()[number - 1]
    gone = {"resource": "notes", "op": "delete", "scope": str(number), "before": text, "count": 1}
    return Preview(changes=[gone], guards={"text": text})


@tool(
    effects="destructive",
    resources=["delete notes/{number}"],
    scopes=["notes:write"],
    validate=_must_exist,
    preview=_would_be_gone,
    examples=[{"number": 1}],
)
def forget(number: Annotated[int, Field(ge=1)], context: ToolContext) -> Note:
    """Take a note out of notes.txt, for good.

    Args:
        number: Which note, counted from 1.
    """
    with _one_at_a_time:
        lines = _lines()
        text = lines.pop(number - 1)
        if context.guards.get("text", text) != text:
            raise ToolConflict(f"note {number} is not the one that somebody decided about")
        NOTES.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return Note(number=number, text=text)


def _lines() -> list[str]:
    return NOTES.read_text(encoding="utf-8").splitlines() if NOTES.exists() else []
