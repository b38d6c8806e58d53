"""Define `deputize undo`: take back what calls did."""

import sys
from collections.abc import Iterator
from json import dumps
from typing import Annotated, Any

import typer

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.client.times import parse_time
from deputize.interfaces.cli.commands.calls import resolve_call_id
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    EXIT_PENDING,
    CommandExit,
    Json,
    exit_with_error,
    format_count,
    printer,
)
from deputize.interfaces.cli.render.undo_steps import render_sent_values

_SIGNS = {"ready": "undo", "done": "done", "blocked": "stays"}
_MAX_NAME_LENGTH = 120
# As in `core/caller.py`, which is too slow to load for a page of help.
_UNDO_SCOPE = "deputize:undo"


def undo(
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The id of the call, or last.")] = "",
    session: Annotated[str, typer.Option(help="Undo the calls of this session.")] = "",
    agent: Annotated[str, typer.Option(help="Undo what this agent did since --since.")] = "",
    since: Annotated[str, typer.Option(help="Only calls since this time, such as 2h or 2026-05-01T08:00Z.")] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be undone, and change nothing.")] = False,
    requests: Annotated[bool, typer.Option("--requests", help="List what agents ask to be undone.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation on a terminal.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Undo a call, a session or what an agent did: first the plan, then what is ready, newest first."""
    if sum(map(bool, (call_id, session, agent, requests))) != 1:
        exit_with_error("Name one of: a call, --session, --agent with --since, or --requests.")
    if requests:
        _list_requests(find_gateway(url, token).get("/v1/undo/requests"), json)
        return
    if agent and not since:
        exit_with_error("Say since when: deputize undo --agent NAME --since 4h.")
    gateway = find_gateway(url, token)
    # Once an undo was called, it is the last call.
    again = "repeat the command"
    if call_id == "last":
        call_id = resolve_call_id(gateway, call_id)
        again = f"deputize undo {call_id}"
    moment = parse_time(since, "since") if since else ""
    selection = {
        name: value
        for name, value in (
            ("call_id", call_id), ("session", session), ("agent", agent), ("since", moment),
        )
        if value
    }  # fmt: skip
    planned = gateway.post("/v1/undo/plan", selection).value
    if plan:
        _finish_plan(planned, json)
        return
    if not planned["ready"] or _UNDO_SCOPE in planned["missing_scopes"]:
        _finish_plan(planned, json)
        _end_without_undo(planned, json)
        return
    if not json:
        _print_plan(planned)
    is_asked = not yes and not json and sys.stdin.isatty() and sys.stderr.isatty()
    if is_asked and not typer.confirm(f"Undo {format_count(planned['ready'], 'call')}?", err=True):
        exit_with_error("Nothing was undone.", EXIT_FAILED)
    made: list[dict[str, Any]] = []
    approval: dict[str, Any] | None = None
    left, shown_ids = planned, _list_ready(planned)
    while left["ready"] and _list_ready(left) <= shown_ids:
        answer = gateway.post("/v1/undo", {**selection, "digest": left["digest"]}).value
        made += answer["made"]
        left, approval = answer["left"], answer["approval"]
        if not json:
            for each in answer["made"]:
                printer.line(f"  {each['state']:<18} {each['undone_call_id']} by {each['tool']} ({each['call_id']})")
        if not answer["made"] or answer["made"][-1]["state"] != "succeeded":
            break
    has_unseen = not _list_ready(left) <= shown_ids
    _finish(made, left, approval, json, again, done_before=planned["done"], has_unseen=has_unseen)


def _list_ready(plan: dict[str, Any]) -> set[str]:
    """List what would be done, each as it was shown."""
    return {
        dumps([each["entry_id"], each["undo_tool"], each["arguments"], each["origins"]], sort_keys=True)
        for each in plan["steps"]
        if each["verdict"] == "ready"
    }


def _list_requests(answer: dict[str, Any], json: bool) -> None:
    if json:
        printer.json(answer)
    elif not answer["requests"]:
        printer.line("No agent asks for an undo.")
    else:
        rows = [
            [each["tool"], each["agent"] or each["user"], each["asked_at"], each["call_id"]]
            for each in answer["requests"]
        ]
        printer.table(["TOOL", "CALLED BY", "ASKED", "CALL"], rows)
        printer.note("  See what would be undone, and decide: deputize undo CALL")


def _finish_plan(planned: dict[str, Any], json: bool) -> None:
    if json:
        printer.json(planned)
    elif planned["steps"]:
        _print_plan(planned)
    else:
        printer.line(
            "Nothing to undo: the journal has no such change that you may see. Reads leave none; deputize calls list "
            "shows the ids of calls."
        )


def _end_without_undo(planned: dict[str, Any], json: bool) -> None:
    """End with success only if nothing is left to undo."""
    if planned["ready"] or planned["blocked"] or not planned["done"]:
        if json:
            raise CommandExit(EXIT_FAILED)
        why = f": undoing calls needs the scope {_UNDO_SCOPE}" if planned["ready"] else ""
        exit_with_error(f"Nothing was undone{why}.", EXIT_FAILED)
    printer.note(f"  Nothing is left to do: {_count_done(planned['done'])}.")


def _count_done(count: int) -> str:
    return f"{format_count(count, 'call')} {'was' if count == 1 else 'were'} undone before"


def _print_plan(planned: dict[str, Any]) -> None:
    rows = [
        [
            _SIGNS[each["verdict"]],
            each["tool"],
            ", ".join(f"{effect['op']} {effect['resource']}/{effect['scope']}" for effect in each["effects"]),
            each["undo_tool"] if each["verdict"] == "ready" else each["detail"] or "",
            each["call_id"],
        ]
        for each in planned["steps"]
    ]
    printer.table(["", "TOOL", "CHANGED", "UNDONE BY, OR WHY NOT", "CALL"], rows)
    for each in planned["steps"]:
        if each["verdict"] == "ready":
            for line in _render_arguments(each):
                printer.line(line)
    if planned["missing_scopes"]:
        options = " ".join(f"--scope {each}" for each in planned["missing_scopes"])
        printer.warn(f"Your token lacks {', '.join(planned['missing_scopes'])}. To get them: deputize login {options}")
    if not planned["is_complete"]:
        printer.note("  There are more calls than one plan holds: undo these, then repeat the command.")


def _render_arguments(step: dict[str, Any]) -> Iterator[str]:
    """Render what a step sends: each value, and where it is from."""
    tool = to_display_text(step["undo_tool"] or "its tool", _MAX_NAME_LENGTH)
    if step["arguments"] is None:
        yield f"  {tool} for call {step['call_id']}: your token does not see its arguments"
        return
    yield f"  {tool} for call {step['call_id']}{':' if step['arguments'] else ', without arguments'}"
    for line in render_sent_values(step, tool=step["tool"], callers=step["source_agents"] or [step["user"]]):
        yield f"    {line}"


def _finish(
    made: list[dict[str, Any]],
    left: dict[str, Any],
    approval: dict[str, Any] | None,
    json: bool,
    again: str,
    *,
    done_before: int,
    has_unseen: bool,
) -> None:
    """Say what was undone, now and before, such as by an approval since the last time."""
    undone = format_count(sum(each["state"] == "succeeded" for each in made), "call")
    before = f" ({_count_done(done_before)})" if done_before else ""
    if json:
        printer.json({"made": made, "left": left, "approval": approval})
    elif not left["ready"] and made and made[-1]["state"] == "succeeded":
        printer.success(f"Undid {undone}{before}")
    if not left["ready"] and made and made[-1]["state"] == "succeeded":
        return
    more = f", and {left['ready']} more can be" if left["ready"] else ""
    done = f"Undid {undone}{before}{more}."
    if approval is not None:
        steps = approval["steps"]
        what = "The last step waits for approval" if steps == 1 else f"{steps} steps wait for one approval"
        exit_with_error(
            f"{done} {what}: deputize approvals show {approval['approval_id']}. Then {again}.", EXIT_PENDING
        )
    if made and made[-1]["state"] in ("queued", "running"):
        exit_with_error(f"{done} The last step was approved, and is being made: {again}.", EXIT_PENDING)
    if has_unseen:
        exit_with_error(f"{done} Some of them were not in the plan that you saw: {again}.", EXIT_FAILED)
    exit_with_error(f"{done} Read the last step, then {again}: it goes on where it stopped.", EXIT_FAILED)
