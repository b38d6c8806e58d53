"""A refusal as a person reads it: what happened, which rule said so, and what would be allowed."""

import difflib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from deputize.core.plain import plain
from deputize.doors.cli.output import dim, flat, lasting, pretty, printer

_LONGEST = 3000


def show_problem(problem: Mapping[str, Any]) -> None:
    """The problem as it came for programs; for people, in the order in which they ask."""
    if printer.as_json:
        printer.json(problem)
        return
    error: Mapping[str, Any] = problem.get("error", {})
    printer.bad(f"{problem.get('title', 'Refused')} ({error.get('number', problem.get('status', '?'))})")
    for line in _lines(problem, error):
        printer.aside(f"  {line}")


def _lines(problem: Mapping[str, Any], error: Mapping[str, Any]) -> Iterator[str]:
    details: Mapping[str, Any] = error.get("details") or {}
    tool = str((problem.get("tool") or {}).get("name") or "")
    yield from _what(problem, details)
    if rule := details.get("rule"):
        yield f"rule: {rule}"
    yield from _rules(details)
    if example := details.get("example"):
        yield f"a call that works: deputize call {tool or 'NAME'} {flat(example)}"
    after = error.get("retry_after_ms")
    if error.get("retryable"):
        yield "trying again may help" + (f", after {_wait(after)}" if after else "")
    elif after:
        yield f"trying again is of no use for {_wait(after)}"
    if not (details.get("errors") and details.get("example")):
        yield str(error.get("advice", ""))
    footer = [f"trace {problem.get('trace_id') or error.get('trace_id', '')}"]
    if call_id := problem.get("call_id"):
        if details.get("behavior"):
            yield f"why, and what would allow it: deputize policy explain {call_id}"
        footer.append(f"call {call_id}")
    yield dim(" · ".join(footer), sys.stderr)


def _rules(details: Mapping[str, Any]) -> Iterator[str]:
    """Where several rules of a policy spoke, each with its place and reason; of one alone the message says it all."""
    rules = details.get("rules")
    if not isinstance(rules, list):
        return
    for each in rules if len(rules) > 1 else ():
        where = f" ({each['where']})" if each.get("where") else ""
        why = f": {each['reason']}" if each.get("reason") else ""
        yield f"rule: {each.get('id')}{where}{why}"
    if suggestion := details.get("suggestion"):
        yield str(suggestion)


def _what(problem: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    """Each mistake on its own line where there are several kinds, else the message."""
    errors = details.get("errors")
    reasons = details.get("reasons")
    if isinstance(errors, list) and errors:
        for each in errors:
            place = f"{each['file']}:{each['line']}:" if "file" in each else _name(each.get("path", ""))
            yield f"{place} {each.get('message', '')}{_hint(each)}"
    elif isinstance(reasons, list) and reasons:
        for each in reasons:
            yield f"{_name(each.get('path', ''))} {each.get('reason', '')}; {each.get('fix', '')}"
    else:
        said = str(problem.get("detail", ""))
        # What a person said when they decided is shown as what it is, whatever they typed.
        yield plain(said, _LONGEST) if "ticket_id" in details else said
        if known := details.get("versions"):
            yield f"versions: {', '.join(known)}"
        if known := details.get("names"):
            yield f"there is: {', '.join(known)}"


def _hint(mistake: Mapping[str, Any]) -> str:
    if mistake.get("rule") == "enum":
        return f": {', '.join(pretty(each) for each in mistake.get('expected', ()))}"
    known = mistake.get("known")
    if not known:
        return ""
    near = difflib.get_close_matches(_name(mistake["path"]), known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"


def _wait(milliseconds: int) -> str:
    return lasting(-(-milliseconds // 1000)) if milliseconds >= 1000 else f"{milliseconds} ms"


def _name(path: str) -> str:
    """A JSON pointer as a person would say it."""
    return path.strip("/").replace("/", ".").replace("~1", "/").replace("~0", "~") or "the whole"
