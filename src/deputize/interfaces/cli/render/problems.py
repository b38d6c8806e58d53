"""Render a problem document: what happened, which rule or field caused it, and what to do next."""

import difflib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.render.output import dim_text, format_arguments, format_duration, format_json, printer

_MAX_TEXT_LENGTH = 3000
# What an empty JSON pointer means, by error number.
_ROOT_NAMES = {"E3301": "the arguments", "E3303": "the return value"}


def show_problem(problem: Mapping[str, Any]) -> None:
    """Print a problem: unchanged for programs, in reading order for people."""
    if printer.as_json:
        printer.json(problem)
        return
    error: Mapping[str, Any] = problem.get("error", {})
    printer.error(f"{problem.get('title', 'Refused')} ({error.get('number', problem.get('status', '?'))})")
    for line in _render_problem(problem, error):
        printer.note(f"  {line}")


def is_repeatable(error: Mapping[str, Any]) -> bool:
    """Tell whether the same call may simply be made again: after a conflict its arguments may be out of date."""
    return bool(error.get("retryable")) and error.get("slug") != "tool-conflict"


def _render_problem(problem: Mapping[str, Any], error: Mapping[str, Any]) -> Iterator[str]:
    details: Mapping[str, Any] = error.get("details") or {}
    tool = str((problem.get("tool") or {}).get("name") or "")
    yield from _render_cause(problem, error, details)
    if rule := details.get("rule"):
        yield f"rule: {rule}"
    yield from _render_rules(details)
    if example := details.get("example"):
        yield f"Example: deputize call {tool or 'NAME'} {format_arguments(example)}"
    after = error.get("retry_after_ms")
    if is_repeatable(error):
        yield f"You can retry in {_format_wait(after)}." if after else "You can retry."
    elif after:
        yield f"Do not retry for {_format_wait(after)}."
    if not (details.get("errors") and details.get("example")):
        yield str(error.get("advice", ""))
    footer = [f"trace {problem.get('trace_id') or error.get('trace_id', '')}"]
    if call_id := problem.get("call_id"):
        if details.get("behavior"):
            yield f"Why, and what would be allowed: deputize policy explain {call_id}"
        footer.append(f"call {call_id}")
    yield dim_text(" · ".join(footer), sys.stderr)


def _render_rules(details: Mapping[str, Any]) -> Iterator[str]:
    """Render each policy rule where several apply; a single one is already in the message."""
    rules = details.get("rules")
    if not isinstance(rules, list):
        return
    for each in rules if len(rules) > 1 else ():
        where = f" ({each['where']})" if each.get("where") else ""
        why = f": {each['reason']}" if each.get("reason") else ""
        yield f"rule: {each.get('id')}{where}{why}"
    if suggestion := details.get("suggestion"):
        yield str(suggestion)


def _render_cause(problem: Mapping[str, Any], error: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    """Render each error on its own line, or the message if there is no list of them."""
    errors = details.get("errors")
    reasons = details.get("reasons")
    root_name = _ROOT_NAMES.get(str(error.get("number")), "the document")
    if isinstance(errors, list) and errors:
        for each in errors:
            place = f"{each['file']}:{each['line']}:" if "file" in each else _format_path(each.get("path"), root_name)
            yield f"{place} {each.get('message', '')}{_suggest_fix(each)}"
    elif isinstance(reasons, list) and reasons:
        for each in reasons:
            yield f"{_format_path(each.get('path'), root_name)} {each.get('reason', '')}; {each.get('fix', '')}"
    else:
        detail = str(problem.get("detail", ""))
        # The reason of an approver is free text, which must not change what the terminal shows.
        yield to_display_text(detail, _MAX_TEXT_LENGTH) if "approval_id" in details else detail
        if names := details.get("versions"):
            yield f"versions: {', '.join(names)}"
        if names := details.get("names"):
            yield f"available: {', '.join(names)}"


def _suggest_fix(error: Mapping[str, Any]) -> str:
    if error.get("rule") == "enum":
        return f": {', '.join(format_json(each) for each in error.get('expected', ()))}"
    known_names = error.get("known")
    if not known_names:
        return ""
    matches = difflib.get_close_matches(_format_path(error["path"], ""), known_names, n=1)
    return f"; did you mean {matches[0]}?" if matches else f"; known names: {', '.join(known_names)}"


def _format_wait(milliseconds: int) -> str:
    return format_duration(-(-milliseconds // 1000)) if milliseconds >= 1000 else f"{milliseconds} ms"


def _format_path(pointer: str | None, root_name: str) -> str:
    """Format a JSON pointer as a dotted path."""
    return (pointer or "").strip("/").replace("/", ".").replace("~1", "/").replace("~0", "~") or root_name
