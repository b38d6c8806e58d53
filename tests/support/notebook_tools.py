"""Tools over notes in memory that declare how they are taken back, in every class."""

import threading
from typing import Annotated, Any, Final

from pydantic import Field

from deputize import Preview, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE

Name = Annotated[str, Field(description="The name of the note", examples=["a"])]
Text = Annotated[str, Field(description="What it says", examples=["milk"])]

notes: dict[str, str] = {}
mails: list[str] = []
# What `reopen` was to compare with what it met.
guarded: list[dict[str, Any]] = []
# What a tool raises for notes of this name, once its effect is there.
failures: dict[str, Exception] = {}
# What `change` waits for before it writes a note of this name.
gates: dict[str, threading.Event] = {}
_OPTIONS: Final[dict[str, Any]] = {"scopes": ["book:write"], "namespace": "book"}


def _fail(name: str) -> None:
    if name in failures:
        raise failures.pop(name)


def read_note(name: str) -> Any:
    return {"text": notes.get(name)}


@tool(
    effects="write", resources=["create book.notes/{name}"], undo="book.remove",
    compensation={
        "compensation_class": "full", "tool": "book.remove", "bind": {"name": "/result/name"}, "within_seconds": 3600,
    },
    **_OPTIONS,
)  # fmt: skip
def add(name: Name, text: Text) -> dict[str, str]:
    """Add a note to the book."""
    notes[name] = text
    _fail(name)
    return {"name": name, "text": text}


@tool(
    effects="write", resources=["delete book.notes/{name}"], undo="book.add", read_state=read_note,
    compensation={
        "compensation_class": "full", "tool": "book.add", "bind": {"name": "/arguments/name", "text": "/before/text"},
    },
    **_OPTIONS,
)  # fmt: skip
def remove(name: Name) -> dict[str, str]:
    """Remove a note from the book."""
    _fail(name)
    return {"name": name, "text": notes.pop(name)}


@tool(
    effects="write", resources=["update book.notes/{name}"], undo="book.change", read_state=read_note,
    compensation={
        "compensation_class": "full", "tool": "book.change",
        "bind": {"name": "/arguments/name", "text": "/before/text"},
    },
    **_OPTIONS,
)  # fmt: skip
def change(name: Name, text: Text) -> dict[str, str]:
    """Change what a note says."""
    if name in gates:
        assert gates.pop(name).wait(60)
    notes[name] = text
    return {"name": name}


@tool(effects="write", resources=["update book.pins/{name}"], undo="book.unpin", **_OPTIONS)
def pin(name: Name, text: Text) -> dict[str, str]:
    """Pin a note; only the tool that undoes it is named."""
    notes[f"pin {name}"] = text
    return {"name": name}


@tool(effects="write", resources=["update book.pins/{name}"], undo="book.pin", **_OPTIONS)
def unpin(name: Name) -> dict[str, str]:
    """Unpin a note."""
    notes.pop(f"pin {name}")
    return {"name": name}


@tool(effects="write", resources=["update book.stamps/{name}"], undo="book.unstamp", **_OPTIONS)
def stamp(name: Name) -> dict[str, str]:
    """Stamp a note; taking a stamp back needs another scope."""
    notes[f"stamp {name}"] = ""
    return {"name": name}


@tool(
    effects="write", resources=["update book.stamps/{name}"], undo="book.stamp", namespace="book",
    scopes=["book:stamps"],
)  # fmt: skip
def unstamp(name: Name) -> dict[str, str]:
    """Take back a stamp."""
    notes.pop(f"stamp {name}")
    return {"name": name}


def preview_reopen(name: str) -> Preview:
    text = notes.get(f"closed {name}")
    return Preview(
        preconditions=[{"name": "kept", "holds": text is not None, "detail": "its text was not kept"}],
        impact={"text": text},
        guards={"text": text},
    )


@tool(effects="write", resources=["update book.folders/{name}"], undo="book.reopen", **_OPTIONS)
def close(name: Name) -> dict[str, str]:
    """Close a note, and keep its text."""
    notes[f"closed {name}"] = notes.pop(name)
    return {"name": name}


@tool(
    effects="write", resources=["update book.folders/{name}"], undo="book.close", preview=preview_reopen, **_OPTIONS
)  # fmt: skip
def reopen(name: Name, context: ToolContext) -> dict[str, str]:
    """Open a note with the text that was kept."""
    guarded.append(dict(context.guards))
    notes[name] = notes.pop(f"closed {name}")
    return {"name": name}


@tool(effects="write", resources=["create book.lines"], undo="book.cut", **_OPTIONS)
def append(text: Text) -> dict[str, int]:
    """Append a line under a number of its own."""
    number = len(notes)
    notes[f"line {number}"] = text
    return {"number": number}


@tool(effects="write", resources=["delete book.lines/{number}"], undo="book.append", **_OPTIONS)
def cut(number: Annotated[int, Field(description="The number of the line", examples=[0])]) -> dict[str, str]:
    """Cut a line."""
    return {"text": notes.pop(f"line {number}")}


@tool(effects="write", resources=["update book.titles/{name}"], undo="book.title", **_OPTIONS)
def title(name: Name, text: Text) -> dict[str, str]:
    """Set a title; another title takes it back, and nothing says which."""
    notes[f"title {name}"] = text
    return {"name": name}


@tool(
    effects="destructive", resources=["create book.mails/{name}"], preview=lambda name: {"mails": 1},
    compensation={"compensation_class": "irreversible"}, **_OPTIONS,
)  # fmt: skip
def mail(name: Name) -> dict[str, str]:
    """Mail a note to its reader."""
    mails.append(name)
    return {"name": name}


TOOLS: Final = [
    getattr(each, ATTRIBUTE)
    for each in (add, remove, change, pin, unpin, stamp, unstamp, close, reopen, append, cut, title, mail)
]
