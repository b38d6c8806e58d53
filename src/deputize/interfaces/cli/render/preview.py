"""Render a dry run and a preview: what would change, whether the call would run, and who would have to approve it.

Text written by tools and callers is escaped, so that it cannot change what the terminal shows.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.output import EXIT_FAILED, GO, NO, OK, CommandExit, dim_text, printer, style_sign

_MAX_TEXT_LENGTH: Final = 300
_MAX_ENTRIES: Final = 50


def show_dry_run(envelope: Mapping[str, Any], *, json: bool) -> None:
    """Print a dry run; exit with the code of a refusal if the call itself would be refused."""
    verdict = envelope["would"]
    is_refused = verdict["behavior"] == "refuse"
    if json:
        printer.json(envelope)
    sign = style_sign(NO if is_refused else OK, sys.stdout)
    printer.line(f"{sign} Dry run: {_describe_verdict(str(envelope['tool']['name']), verdict)}. Nothing was changed.")
    for line in (*_render_requirements(verdict), *render_preview(envelope["preview"])):
        printer.line(f"  {line}")
    footer = f"allowed by {', '.join(envelope['decision']['rules'])} · call {envelope['call_id']}"
    printer.note(
        dim_text(f"  {footer}" if verdict["behavior"] == "run" else f"  call {envelope['call_id']}", sys.stderr)
    )
    for message in envelope.get("warnings") or ():
        printer.warn(to_display_text(str(message)))
    if is_refused:
        raise CommandExit(EXIT_FAILED)


def _describe_verdict(tool: str, verdict: Mapping[str, Any]) -> str:
    match verdict["behavior"]:
        case "refuse":
            return (
                f"{tool} would be refused; not met: {to_display_text('; '.join(verdict['because']), _MAX_TEXT_LENGTH)}"
            )
        case "ask":
            return f"{tool} would wait for approval"
        case _:
            return f"{tool} would run"


def _render_requirements(verdict: Mapping[str, Any]) -> Iterator[str]:
    for each in verdict["approvals"]:
        quorum = f"{each['quorum']} of " if each["quorum"] > 1 else ""
        where = f" ({each['where']})" if each["where"] else ""
        why = f": {each['reason']}" if each["reason"] else ""
        yield to_display_text(f"approval by {quorum}{', then '.join(each['groups'])}: {each['rule']}{where}{why}")


def render_preview(preview: Mapping[str, Any]) -> Iterator[str]:
    """Render what would change, one item per line."""
    if problem := preview.get("problem"):
        yield f"the tool's preview failed: {to_display_text(str(problem), _MAX_TEXT_LENGTH)}"
    changes = preview["changes"]
    for each in changes[:_MAX_ENTRIES]:
        yield from _render_change(each)
    if len(changes) > _MAX_ENTRIES:
        yield f"and {len(changes) - _MAX_ENTRIES} more changes"
    if not changes:
        yield "no changes"
    others = sorted({*preview["resources"]} - {f"{each['resource']}/{each['scope']}" for each in changes})
    for name in others[:_MAX_ENTRIES]:
        yield f"touches {to_display_text(str(name), _MAX_TEXT_LENGTH)}"
    if len(others) > _MAX_ENTRIES:
        yield f"and touches {len(others) - _MAX_ENTRIES} more resources"
    for each in preview["preconditions"][:_MAX_ENTRIES]:
        detail = f": {to_display_text(str(each['detail']), _MAX_TEXT_LENGTH)}" if each["detail"] else ""
        yield (
            f"{style_sign(OK if each['holds'] else NO, sys.stdout)} "
            f"{to_display_text(str(each['name']), _MAX_TEXT_LENGTH)}{detail}"
        )
    for name, value in list(preview["impact"].items())[:_MAX_ENTRIES]:
        yield from _render_impact(str(name), value)
    if preview["unknown"]:
        yield f"unknown: {', '.join(preview['unknown'])}"


def _render_impact(name: str, value: Any) -> Iterator[str]:
    """Render a list of texts as lines, such as those of a diff, and anything else as JSON."""
    title = to_display_text(name, _MAX_TEXT_LENGTH)
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        yield f"{title}: {_format_value(value)}"
        return
    yield f"{title}:"
    for line in value[:_MAX_ENTRIES]:
        yield f"    {to_display_text(line, _MAX_TEXT_LENGTH)}"
    if len(value) > _MAX_ENTRIES:
        yield f"    and {len(value) - _MAX_ENTRIES} more lines"


def _render_change(change: Mapping[str, Any]) -> Iterator[str]:
    scope = "" if change["scope"] == "*" else f"/{change['scope']}"
    what = to_display_text(f"{change['op']} {change['resource']}{scope}", _MAX_TEXT_LENGTH)
    count = change.get("count")
    yield f"{style_sign(GO, sys.stdout)} {what}" + (f" ({count:,})" if isinstance(count, int) else "")
    for side in ("before", "after"):
        if side in change:
            yield f"    {side}: {_format_value(change[side])}"


def _format_value(value: Any) -> str:
    return to_display_text(json.dumps(value, ensure_ascii=False), _MAX_TEXT_LENGTH)
