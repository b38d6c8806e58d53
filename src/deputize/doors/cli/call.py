"""`deputize call`: one governed call, with its result on stdout and how it came about on stderr."""

import sys
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.doors.cli.output import PENDING, REFUSED, Json, Stopped, dim, give_up, pretty, printer
from deputize.doors.cli.problems import show_problem
from deputize.doors.cli.remote import Refused, Token, Url, call_path, complete_tool, find_gateway, tool_path
from deputize.doors.cli.values import NotAnArgument, arguments_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deputize.doors.cli.exchange import Gateway

DryRun = Annotated[bool, typer.Option("--dry-run", help="Do everything but the effect, and show what it would change.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow a call that was answered at once, and print its result.")]


def call(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=complete_tool, help="The tool, as in hello.greet.")
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments, read as the tool's schema says.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object; - reads it from stdin.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key again answers with the first outcome.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Version or range, as in 1.2.0, ^1.2 or 1.x.")] = None,
    deadline: Annotated[
        int | None, typer.Option(min=1, metavar="MS", help="Wait at most so many milliseconds.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="A name that groups calls in the record.")] = None,
    run: Annotated[
        bool, typer.Option("--async", help="Answer at once; a worker carries the call, and its id finds it again.")
    ] = False,
    wait: Wait = False,
    priority: Annotated[
        int | None, typer.Option(min=1, max=10, help="Among queued calls: 1 is the most urgent.")
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="When --deadline is over, let it go on as a run where that is safe.")
    ] = False,
    dry_run: DryRun = False,
    callback: Annotated[
        str | None, typer.Option(metavar="URL", help="Where to tell of the end of a call that was answered at once.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Call a tool. A write acts once per idempotency key; one is made up when none is given. Ends with 3 if people have
    to agree first: the call waits for them, and goes on by itself.
    """
    gateway = find_gateway(url, token)
    shown = _shown(gateway, name, version)
    arguments = _arguments(words or (), (shown or {}).get("input_schema") or {}, args)
    told = {
        "version": version, "deadline_ms": deadline, "session": session, "mode": "async" if run else None,
        "priority": priority, "continue": go_on or None, "callback": {"url": callback} if callback else None,
        "dry_run": dry_run,
    }  # fmt: skip
    body = {"tool": name, "arguments": arguments, **{field: value for field, value in told.items() if value}}
    writes = not dry_run and (shown is None or shown.get("mutation_class") != "read")
    _send(gateway, body, key or str(uuid.uuid4()), writes, json=json, wait=wait)


def _arguments(words: Sequence[str], schema: dict[str, Any], args: str | None) -> dict[str, Any]:
    try:
        return arguments_from(words, schema, sys.stdin.read() if args == "-" else args)
    except NotAnArgument as error:
        give_up(str(error))


def _shown(gateway: "Gateway", name: str, version: str | None) -> dict[str, Any] | None:
    """What the tool takes; unknown here, the call itself is refused, so that the refusal is on record."""
    try:
        shown: dict[str, Any] = gateway.get(tool_path(name), version=version)
    except Refused as refused:
        if str(refused.problem.get("status")) in ("401", "403"):
            raise
        return None
    return shown


def _send(gateway: "Gateway", body: dict[str, Any], key: str, writes: bool, *, json: bool, wait: bool) -> None:
    try:
        answer = gateway.post("/v1/calls", body, {} if body.get("dry_run") else {"Idempotency-Key": key})
    except Refused as refused:
        tool = {"name": body["tool"]}
        show_problem({"tool": tool, **refused.problem})
        if writes and refused.problem.get("error", {}).get("retryable"):
            printer.aside(f"  to repeat exactly this call: --key {key}")
        raise Stopped(REFUSED) from None
    except KeyboardInterrupt:
        if body.get("dry_run"):
            give_up("Stopped waiting. Nothing was done, and nothing will be.", REFUSED)
        again = f", or repeat it safely with --key {key}" if writes else ""
        give_up(f"Stopped waiting. The gateway carries the call to its end: see deputize calls{again}.", REFUSED)
    if answer.value.get("dry_run"):
        from deputize.doors.cli.previewed import show_dry_run

        show_dry_run(answer.value, json=json)
        return
    if "poll_after_ms" in answer.value:
        taken_on(gateway, answer.value, key if writes else None, json=json, wait=wait)
        return
    show_result(answer.value, answer.headers, key if writes else None, json=json)


def taken_on(gateway: "Gateway", told: dict[str, Any], key: str | None, *, json: bool, wait: bool) -> None:
    """A call that was answered before its end: where to look for it, or, who waits, its end."""
    call_id, waits = told["call_id"], bool(told.get("approval"))
    for warning in told.get("warnings") or ():
        printer.warn(warning)
    if waits:
        from deputize.doors.cli.approval_shown import show_waiting

        show_waiting(told, key)
    if wait:
        from deputize.doors.cli.watching import follow

        follow(gateway, call_id, aside=True)
        show_end(gateway.get(call_path(call_id)), json=json)
        return
    if json:
        printer.json(told)
    if waits:
        raise Stopped(PENDING)
    printer.good(f"{told['state']}: call {call_id}")
    printer.aside(dim(f"  follow it with deputize calls watch {call_id}; you may disconnect", sys.stderr))


def show_end(envelope: dict[str, Any], *, json: bool) -> None:
    """How a call ended that was looked for: its result, or the problem it ended in."""
    if envelope.get("is_error"):
        show_problem(envelope)
        raise Stopped(REFUSED)
    show_result(envelope, {}, None, json=json)


def show_result(envelope: dict[str, Any], headers: "Mapping[str, str]", key: str | None, *, json: bool) -> None:
    if json:
        printer.json(envelope)
    printer.line(pretty(envelope.get("result")))
    printer.aside(dim(_footer(envelope, headers, key), sys.stderr))
    for added in envelope.get("context") or ():
        printer.aside(f"  {added.get('source')} adds: {pretty(added.get('value'))}")
    for warning in envelope.get("warnings") or ():
        printer.warn(warning)


def _footer(envelope: dict[str, Any], headers: "Mapping[str, str]", key: str | None) -> str:
    rules = ", ".join((envelope.get("decision") or {}).get("rules") or ()) or "?"
    duration = (envelope.get("execution") or {}).get("duration_ms")
    parts = [f"allowed by {rules}"]
    if duration is not None:
        parts.append(f"{duration:.0f} ms" if duration >= 1 else "<1 ms")
    parts += [f"trace …{str(envelope.get('trace_id', ''))[-6:]}", f"call {envelope.get('call_id')}"]
    if key:
        parts.append(f"key {key}")
    if any(name.lower() == "idempotency-replayed" for name in headers):
        parts.append("replayed, nothing was done again")
    return " · ".join(parts)
