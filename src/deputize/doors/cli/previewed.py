"""A preview as a person reads it: what would change, whether it could, and whom it would be put to.

What tools and callers wrote is shown so that it can be read and does nothing else. `deputize call --dry-run` prints
these lines, and whoever shows a ticket may.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.core.plain import plain
from deputize.doors.cli.output import GO, NO, OK, REFUSED, Stopped, dim, mark, printer

_LONGEST: Final = 300
_MOST: Final = 50


def show_dry_run(envelope: Mapping[str, Any], *, json: bool) -> None:
    """Ends with the exit code of a refusal where the call itself would be refused."""
    would = envelope["would"]
    refused = would["behavior"] == "refuse"
    if json:
        printer.json(envelope)
    sign = mark(NO if refused else OK, sys.stdout)
    printer.line(f"{sign} {_next(str(envelope['tool']['name']), would)}; nothing was done")
    for line in (*_asking(would), *preview_lines(envelope["preview"])):
        printer.line(f"  {line}")
    footer = f"allowed by {', '.join(envelope['decision']['rules'])} · call {envelope['call_id']}"
    printer.aside(dim(f"  {footer}" if would["behavior"] == "run" else f"  call {envelope['call_id']}", sys.stderr))
    for warning in envelope.get("warnings") or ():
        printer.warn(plain(str(warning)))
    if refused:
        raise Stopped(REFUSED)


def _next(tool: str, would: Mapping[str, Any]) -> str:
    match would["behavior"]:
        case "refuse":
            return f"{tool} would be refused: {plain('; '.join(would['because']), _LONGEST)}"
        case "ask":
            return f"{tool} would ask people first"
        case _:
            return f"{tool} would run"


def _asking(would: Mapping[str, Any]) -> Iterator[str]:
    for each in would["asks"]:
        several = f"{each['quorum']} of " if each["quorum"] > 1 else ""
        where = f" ({each['where']})" if each["where"] else ""
        why = f": {each['reason']}" if each["reason"] else ""
        yield plain(f"asks {several}{', then '.join(each['groups'])} by {each['rule']}{where}{why}")


def preview_lines(preview: Mapping[str, Any]) -> Iterator[str]:
    """What would change, one thing per line."""
    if problem := preview.get("problem"):
        yield f"the tool's own preview could not be had: {plain(str(problem), _LONGEST)}"
    changes = preview["changes"]
    for each in changes[:_MOST]:
        yield from _change(each)
    if len(changes) > _MOST:
        yield f"and {len(changes) - _MOST} more changes"
    if not changes:
        yield "changes nothing" if preview["by"] == "contract" else "would change nothing"
    others = sorted({*preview["resources"]} - {f"{each['resource']}/{each['scope']}" for each in changes})
    for name in others[:_MOST]:
        yield f"touches {plain(str(name), _LONGEST)}"
    if len(others) > _MOST:
        yield f"and touches {len(others) - _MOST} more"
    for each in preview["preconditions"][:_MOST]:
        detail = f": {plain(str(each['detail']), _LONGEST)}" if each["detail"] else ""
        yield f"{mark(OK if each['holds'] else NO, sys.stdout)} {plain(str(each['name']), _LONGEST)}{detail}"
    for name, value in list(preview["impact"].items())[:_MOST]:
        yield f"{plain(str(name), _LONGEST)}: {_value(value)}"
    if preview["unknown"]:
        yield f"unknown: {', '.join(preview['unknown'])}"


def _change(change: Mapping[str, Any]) -> Iterator[str]:
    scope = "" if change["scope"] == "*" else f"/{change['scope']}"
    what = plain(f"{change['op']} {change['resource']}{scope}", _LONGEST)
    count = change.get("count")
    yield f"{mark(GO, sys.stdout)} {what}" + (f" ({count:,})" if isinstance(count, int) else "")
    for side in ("before", "after"):
        if side in change:
            yield f"    {side}: {_value(change[side])}"


def _value(value: Any) -> str:
    return plain(json.dumps(value, ensure_ascii=False), _LONGEST)
