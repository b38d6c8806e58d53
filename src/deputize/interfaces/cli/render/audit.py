"""Render calls and audit entries: a row of a table, a line of a tail, and all facts of one."""

from collections.abc import Iterator
from typing import Any

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.output import format_json

_SHORT_PSEUDONYM = 12
# What an entry stores under a name that the lines above use for what people know it by.
_STORED_NAMES = {"caller": "caller pseudonyms", "decision": "decision record"}


def format_entry_caller(row: dict[str, Any]) -> str:
    """Format who acted for whom; a pseudonym stands for a name that is not known or was erased."""
    pseudonyms = row["entry"].get("caller", [])
    names = [row.get("user"), *row.get("agents", ())]
    people = [
        to_display_text(name) if name else f"{pseudonym[:_SHORT_PSEUDONYM]}…"
        for name, pseudonym in zip(names, pseudonyms, strict=False)
    ]
    if not people:
        return "gateway"
    return f"{people[1]} for {people[0]}" if len(people) > 1 else people[0]


def list_entry_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """List the cells of an entry in a table."""
    entry = row["entry"]
    decision = row.get("decision") or ""
    rules = ", ".join(entry.get("rules", ()))
    return (
        _format_time(entry),
        format_entry_caller(row),
        _format_subject(entry),
        to_display_text(f"{decision} by {rules}" if decision and rules else decision),
        " ".join(str(part) for part in (entry.get("outcome"), entry.get("error")) if part),
        str(row["id"]),
    )


def format_entry_line(row: dict[str, Any]) -> str:
    """Format an entry as one line."""
    return "  ".join(cell for cell in list_entry_cells(row) if cell)


def describe_entry(row: dict[str, Any]) -> Iterator[str]:
    """Yield everything about one entry, a line each."""
    entry = row["entry"]
    yield f"{_format_time(entry)}  {entry['kind']}  {_format_subject(entry)}"
    yield f"  caller: {format_entry_caller(row)}"
    if row.get("decision"):
        yield f"  decision: {row['decision']}"
    for name, value in entry.items():
        if name not in ("time", "kind", "tool"):
            text = to_display_text(value) if isinstance(value, str) else format_json(value)
            yield f"  {_STORED_NAMES.get(name, name)}: {text}"


def describe_call(call: dict[str, Any]) -> Iterator[str]:
    """Yield what is known of a call, a line each: its tool and state first, then why it failed, then the rest."""
    tool = call.get("tool") or {}
    name = " ".join(str(tool[each]) for each in ("name", "version") if tool.get(each))
    yield to_display_text(f"{name or 'call'}: {call.get('state')}")
    error = call.get("error") or {}
    for text in (error.get("title"), error.get("message") or error.get("detail"), error.get("advice")):
        if text:
            yield f"  {to_display_text(text)}"
    for key, value in call.items():
        if key not in ("tool", "state", "error") and value not in (None, [], {}):
            yield f"  {key}: {to_display_text(value) if isinstance(value, str) else format_json(value)}"


def _format_time(entry: dict[str, Any]) -> str:
    text = str(entry.get("time", ""))
    return f"{text.partition('.')[0].removesuffix('Z').replace('T', ' ')}Z" if text else ""


def _format_subject(entry: dict[str, Any]) -> str:
    # The registration of a tool and the decision about a call name the tool too, and are no calls of it.
    parts = (entry.get("command"), entry.get("tool") or entry.get("subject"))
    return to_display_text(" ".join(str(part) for part in parts if part))
