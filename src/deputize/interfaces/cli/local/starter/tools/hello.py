"""Define three example tools. Change them and add your own: `deputize dev` uses what you save.

The file's name is the first part of each tool's name: `greet` below is called as `hello.greet`.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deputize import Preview, ToolConflict, ToolContext, tool

NOTES = Path("notes.txt")
_write_lock = threading.Lock()


@dataclass
class Note:
    number: int
    text: str


@tool(effects="read", examples=[{"name": "Ana"}])
def greet(name: str) -> str:
    """Say hello to a person.

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
    """Append a note to notes.txt.

    A call takes effect once per idempotency key, so repeating it after a lost connection adds no second note.

    Args:
        text: The note, on one line.
    """
    with _write_lock:
        lines = _read_lines()
        NOTES.write_text("\n".join([*lines, " ".join(text.split())]) + "\n", encoding="utf-8")
        return Note(number=len(lines) + 1, text=text)


def _require_note(number: int) -> None:
    if number > len(_read_lines()):
        raise ValueError(f"there is no note {number}")


def _preview_forget(number: int) -> Preview:
    """Show the approver of `forget` what would be deleted. The call gets the guard back when it runs."""
    text = _read_lines()[number - 1]
    change = {"resource": "notes", "op": "delete", "scope": str(number), "before": text, "count": 1}
    return Preview(changes=[change], guards={"text": text})


@tool(
    effects="destructive",
    resources=["delete notes/{number}"],
    scopes=["notes:write"],
    validate=_require_note,
    preview=_preview_forget,
    examples=[{"number": 1}],
)
def forget(number: Annotated[int, Field(ge=1)], context: ToolContext) -> Note:
    """Delete a note from notes.txt permanently.

    Args:
        number: Number of the note, starting at 1.
    """
    with _write_lock:
        lines = _read_lines()
        text = lines.pop(number - 1)
        if context.guards.get("text", text) != text:
            raise ToolConflict(f"note {number} has changed since it was approved")
        NOTES.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return Note(number=number, text=text)


def _read_lines() -> list[str]:
    return NOTES.read_text(encoding="utf-8").splitlines() if NOTES.exists() else []
