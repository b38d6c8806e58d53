"""Render the steps of an undo: what each sends, and where each value is from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from deputize.core.display_text import to_display_lines, to_display_text
from deputize.interfaces.cli.render.preview import render_preview

_ORIGINS: Final = {
    "arguments": "written by {names}",
    "result": "returned by {tool}, called by {names}",
    "before": "as it was before",
    "contract": "set by the contract of {tool}",
    "unknown": "it was not recorded where from",
}
_DECISIONS: Final = {
    "ask": "needs this approval",
    "allow": "needs none",
    "approved": "was approved before",
    "alone": "asks on its own",
    "refused": "would be refused",
}
_MAX_TEXT_LENGTH: Final = 300
_MAX_LINES: Final = 40
_MAX_NAME_LENGTH: Final = 120


def render_sent_values(step: Mapping[str, Any], *, tool: str, callers: Sequence[str]) -> Iterator[str]:
    """Render the arguments of a step that takes back a call of `tool`, made by these callers."""
    names = ", ".join(to_display_text(each, _MAX_NAME_LENGTH) for each in callers)
    for name, value in step["arguments"].items():
        first, *more = to_display_lines(value, _MAX_TEXT_LENGTH, _MAX_LINES)
        origin = _ORIGINS.get(step["origins"].get(name, ""), _ORIGINS["unknown"])
        origin = origin.format(tool=to_display_text(tool, _MAX_NAME_LENGTH), names=names)
        yield f"{to_display_text(name, _MAX_NAME_LENGTH)}: {first}{'' if more else f'  ({origin})'}"
        yield from more
        if more:
            yield f"({origin})"


def render_approved_steps(approval: Mapping[str, Any]) -> Iterator[str]:
    """Render the steps that one approval request is about, in their order."""
    for number, step in enumerate(approval["undo_steps"], 1):
        decision = _DECISIONS[step["decision"]]
        detail = f": {to_display_text(step['detail'], _MAX_TEXT_LENGTH)}" if step["detail"] else ""
        rules = ", ".join(to_display_text(each["id"], _MAX_NAME_LENGTH) for each in step["rules"])
        yield (
            f"{number:>2}  {to_display_text(step['tool'], _MAX_NAME_LENGTH)}  {decision}{detail}"
            f"{f' by {rules}' if rules else ''} · takes back {to_display_text(step['undone_tool'], _MAX_NAME_LENGTH)} "
            f"in call {to_display_text(step['undone_call_id'], _MAX_NAME_LENGTH)}"
        )
        if step["arguments"] is not None:
            callers = step["source_agents"] or [approval["for_user"]]
            for line in render_sent_values(step, tool=step["undone_tool"], callers=callers):
                yield f"      {line}"
        for each in step.get("suspicions") or ():
            yield f"      Caution: {to_display_text(each['number'])} {to_display_text(each['text'], _MAX_TEXT_LENGTH)}"
        preview = step["preview"]
        if preview is None and step["decision"] == "ask":
            yield "      It has no preview, because a step before it changes the same"
        elif preview is not None and (preview["by"] == "tool" or preview["problem"]):
            for line in render_preview(preview):
                yield f"      {line}"
