"""Render approval requests: two lines for the caller who waits, a full screen for the approver who decides.

Text written by others is escaped, so that it cannot change what the terminal shows.
"""

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from deputize.core.display_text import to_display_lines, to_display_text
from deputize.interfaces.cli.render.output import NO, OK, PAUSE, dim_text, format_duration, printer, style_sign
from deputize.interfaces.cli.render.preview import render_preview
from deputize.interfaces.cli.render.undo_steps import render_approved_steps

_MAX_TEXT_LENGTH: Final = 300
_MAX_NAME_LENGTH: Final = 120
_MAX_LINES: Final = 40
_ROUND_TO_MINUTES_ABOVE_SECONDS: Final = 600
_REVOKED_SLUG: Final = "revoked"
_STATE_TEXTS: Final = {
    "open": (PAUSE, "Waiting for approval"),
    "approved": (OK, "Approved; the call is about to start"),
    "used": (OK, "Approved; the call was started"),
    "denied": (NO, "Denied"),
    "expired": (NO, "Denied automatically: it was not decided in time"),
    "void": (NO, "Void: something changed after the request was made"),
    "canceled": (NO, "Canceled by the caller"),
}


def show_pending_approval(envelope: Mapping[str, Any], key: str | None) -> None:
    """Print to the caller which rule requires approval, by whom, until when, and how to follow the call."""
    approval, call_id = envelope["approval"], envelope["call_id"]
    for line in render_pending_approval(approval, call_id, now=datetime.now(UTC)):
        printer.note(line)
    if approval.get("url"):
        printer.note(f"  Decide in the console: {_sanitize_text(approval['url'])}")
    printer.note(f"  Details: deputize approvals show {call_id}")
    parts = [f"call {call_id}", f"approval request {approval['approval_id']}", *([f"key {key}"] if key else ())]
    printer.note(dim_text(f"  {' · '.join(parts)}", sys.stderr))


def render_pending_approval(approval: Mapping[str, Any], call_id: str, *, now: datetime) -> Iterator[str]:
    """Render the rules that require approval, and what the caller can do meanwhile."""
    for rule in approval["rules"]:
        yield f"{style_sign(PAUSE, sys.stderr)} Approval required: {_describe_rule(rule)}"
    yield f"  {describe_pending_approval(approval, now=now)} Safe to exit: `deputize calls watch {call_id}`."


def describe_pending_approval(approval: Mapping[str, Any], *, now: datetime) -> str:
    """Describe who must approve, and what happens if they do not decide."""
    sentences = [_describe_groups(approval["groups"])]
    if approval.get("escalates_at"):
        sentences.append(f"Escalates {format_time_left(approval['escalates_at'], now=now)}.")
    sentences.append(f"Denied automatically {format_time_left(approval['expires_at'], now=now)}.")
    return " ".join(sentences)


def render_approval(approval: Mapping[str, Any], *, now: datetime) -> Iterator[str]:
    """Render everything an approver needs: the caller, the arguments, the expected changes, the rules, the deadline."""
    sign, state_text = _STATE_TEXTS[approval["state"]]
    if approval["state"] == "void" and approval.get("call_error") == _REVOKED_SLUG:
        state_text = "Withdrawn: the authority of its caller was revoked"
    yield f"{style_sign(sign, sys.stdout)} {state_text} · approval request {_sanitize_text(approval['approval_id'])}"
    if approval.get("undo_steps"):
        yield from _render_undo(approval)
    else:
        yield from _render_call(approval)
        yield from _render_one_call(approval)
    yield from _render_section("Required by", (_describe_rule(each) for each in approval["rules"]))
    yield from _render_section("Approvers", _render_requirements(approval, now))
    yield from _render_section("Decisions so far", (_describe_vote(each) for each in approval["votes"]))


def _render_undo(approval: Mapping[str, Any]) -> Iterator[str]:
    """Render an undo whose steps are approved together."""
    steps = approval["undo_steps"]
    count = sum(each["decision"] == "ask" for each in steps)
    yield f"  {describe_caller(approval)}   undo of {len(steps)} calls in {_sanitize_text(approval['environment'])}"
    yield from _render_section(f"Steps, in this order: one approval for {count}", render_approved_steps(approval))


def _render_one_call(approval: Mapping[str, Any]) -> Iterator[str]:
    """Render what a call sends and changes."""
    yield from _render_section("Arguments", render_arguments(approval["arguments"]))
    suspicions = approval.get("suspicions") or ()
    yield from _render_section("Caution", (_sanitize_text(f"{each['number']} {each['text']}") for each in suspicions))
    if approval.get("input_responses"):
        yield from _render_section("Answers to the server's questions", render_arguments(approval["input_responses"]))
    preview_source = "from the tool's preview" if approval["preview"]["by"] == "tool" else "from the tool's contract"
    yield from _render_section(f"Expected changes ({preview_source})", render_preview(approval["preview"]))
    undo = approval["undo"]
    yield f"  Undo: {_sanitize_text(undo)}" if undo else "  Undo: not possible"


def _render_call(approval: Mapping[str, Any]) -> Iterator[str]:
    tool = approval["tool"]
    digest = str(tool["digest"]).removeprefix("sha256:")[:12]
    yield (
        f"  {describe_caller(approval)}   {_sanitize_text(tool['name'])} {_sanitize_text(tool['version'])} (digest "
        f"{_sanitize_text(digest)}…)"
    )
    facts = [f"{approval['effects']} in {_sanitize_text(approval['environment'])}"]
    facts += [f"{name} {_sanitize_text(approval[name])}" for name in ("task", "session") if approval.get(name)]
    yield f"  {' · '.join(facts)}"
    yield f"  {to_display_text(str(tool['description']).partition(chr(10))[0], _MAX_TEXT_LENGTH)}"


def describe_caller(approval: Mapping[str, Any]) -> str:
    """Name the agents, the acting one first, and the user they act for."""
    return " for ".join(
        to_display_text(str(name), _MAX_NAME_LENGTH) for name in (*approval["agents"], approval["for_user"])
    )


def render_arguments(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Render arguments as JSON, one per line, without the outer braces."""
    if not arguments:
        yield "none"
        return
    first, *lines = to_display_lines(dict(arguments), _MAX_TEXT_LENGTH, _MAX_LINES)
    for line in (first, *lines):
        if line not in ("{", "}"):
            yield line.removeprefix("  ")


def _render_requirements(approval: Mapping[str, Any], now: datetime) -> Iterator[str]:
    for each in approval["demands"]:
        quorum = f"{each['have']} of {each['quorum']} approvals" if each["quorum"] > 1 else "one approval"
        step_up = f", signed in with {_sanitize_text(each['step_up'])}" if each["step_up"] else ""
        chain = ", then ".join(_sanitize_text(group) for group in each["groups"])
        yield f"{chain}: {quorum}{step_up}"
    if approval["state"] == "open":
        yield f"{describe_pending_approval(approval, now=now)} Deadline: {_format_time(approval['expires_at'])}."


def _describe_vote(vote: Mapping[str, Any]) -> str:
    sign = style_sign(OK if vote["approve"] else NO, sys.stdout)
    override = " by emergency override" if vote["broke_glass"] else ""
    reason = f": {_sanitize_text(vote['reason'])}" if vote["reason"] else ""
    voter = to_display_text(str(vote["by"]), _MAX_NAME_LENGTH)
    return f"{sign} {voter}{override} at {_format_time(vote['at'])}{reason}"


def _render_section(title: str, lines: Iterator[str]) -> Iterator[str]:
    first = next(lines, None)
    if first is not None:
        yield f"  {title}"
        yield f"    {first}"
        yield from (f"    {line}" for line in lines)


def _describe_rule(rule: Mapping[str, Any]) -> str:
    where = f" ({_sanitize_text(rule['where'])})" if rule["where"] else ""
    why = f": {_sanitize_text(rule['reason'])}" if rule["reason"] else ""
    return f"{_sanitize_text(rule['id'])}{where}{why}"


def _describe_groups(groups: list[str]) -> str:
    if not groups:
        return "Waiting for approval, but no group is left to decide."
    names = ", ".join(to_display_text(str(group), _MAX_NAME_LENGTH) for group in groups)
    return f"Waiting for approval by {'group' if len(groups) == 1 else 'groups'} {names}."


def _sanitize_text(text: Any) -> str:
    return to_display_text(str(text), _MAX_TEXT_LENGTH)


def _format_time(at: str) -> str:
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_time_left(at: str, *, now: datetime) -> str:
    """Format how long it is until a time, as `in 2 hours`."""
    seconds = int((datetime.fromisoformat(at) - now).total_seconds())
    if seconds > _ROUND_TO_MINUTES_ABOVE_SECONDS:
        seconds += -seconds % 60
    return f"in {format_duration(seconds)}" if seconds > 0 else "now"
