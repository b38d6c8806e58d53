"""Define `deputize call`: make one governed call or several, with results on stdout and notes on stderr."""

import sys
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.client.target import (
    Token,
    Url,
    build_call_path,
    build_tool_path,
    complete_tool,
    find_gateway,
)
from deputize.interfaces.cli.local.arguments import ArgumentSyntaxError, parse_arguments
from deputize.interfaces.cli.local.standard_input import read_standard_input
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    EXIT_PENDING,
    CommandExit,
    Json,
    dim_text,
    exit_with_error,
    format_json,
    printer,
)
from deputize.interfaces.cli.render.problems import is_repeatable, show_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deputize.interfaces.cli.client.rest_client import GatewayClient

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, change nothing, and show what the call would change.")
]
_BATCH_HELP = "Make the calls of this file, a JSON array or one JSON object a line; - reads them from stdin."
Wait = Annotated[bool, typer.Option("--wait", help="Wait for a queued call, and print its result.")]


def call(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", autocompletion=complete_tool, help="The tool, for example hello.greet."),
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments, parsed by the tool's schema.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object; - reads them from stdin.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: repeating a call with the same key returns the first outcome.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Version or range, for example 1.2.0, ^1.2 or 1.x.")] = None,
    deadline: Annotated[
        int | None, typer.Option(min=1, metavar="MS", help="Wait at most this many milliseconds.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Name of a session, which groups calls.")] = None,
    run_async: Annotated[
        bool, typer.Option("--async", help="Queue the call for a worker, and return its id at once.")
    ] = False,
    wait: Wait = False,
    priority: Annotated[
        int | None, typer.Option(min=1, max=10, help="Priority among queued calls; 1 is the most urgent.")
    ] = None,
    may_continue: Annotated[
        bool, typer.Option("--continue", help="After --deadline, let the call continue in a worker if that is safe.")
    ] = False,
    dry_run: DryRun = False,
    max_age: Annotated[
        int | None,
        typer.Option(min=0, metavar="SECONDS", help="How old the result of a read may be; 0 demands a new one."),
    ] = None,
    callback: Annotated[str | None, typer.Option(metavar="URL", help="URL to notify when a queued call ends.")] = None,
    batch: Annotated[str | None, typer.Option(metavar="FILE", help=_BATCH_HELP)] = None,
    on_failure: Annotated[
        Literal["ignore", "cancel_siblings", "cancel_dependent"],
        typer.Option(metavar="POLICY", help="After a failed call: ignore, cancel_siblings or cancel_dependent."),
    ] = "cancel_dependent",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Call a tool. Exits with 3 if the call waits for approval; it continues automatically once approved.

    A write takes effect once per idempotency key. Without --key, a new key is generated.
    """
    if batch is not None:
        options_given = (name, args, key, version, deadline, session, run_async, wait, priority, may_continue, dry_run)
        if any(options_given) or callback or max_age is not None:
            exit_with_error("--batch takes everything about its calls from its file: leave out the other arguments.")
        from deputize.interfaces.cli.commands.call_batch import read_calls, send_batch

        send_batch(find_gateway(url, token), read_calls(batch), on_failure, json=json)
        return
    if name is None:
        exit_with_error("Name the tool to call, for example: deputize call hello.greet name=Ana")
    gateway = find_gateway(url, token)
    tool_info = _fetch_tool(gateway, name, version)
    arguments = _parse_arguments(words or (), (tool_info or {}).get("input_schema") or {}, args)
    options = {
        "version": version, "deadline_ms": deadline, "session": session, "mode": "async" if run_async else None,
        "priority": priority, "continue": may_continue or None, "callback": {"url": callback} if callback else None,
        "dry_run": dry_run or None, "max_age_seconds": max_age,
    }  # fmt: skip
    body: dict[str, Any] = {"tool": name, "arguments": arguments}
    body |= {field: value for field, value in options.items() if value is not None}
    writes = not dry_run and (tool_info is None or tool_info.get("mutation_class") != "read")
    _send_call(gateway, body, key or str(uuid.uuid4()), writes, json=json, wait=wait)


def _parse_arguments(words: Sequence[str], schema: dict[str, Any], args: str | None) -> dict[str, Any]:
    try:
        return parse_arguments(words, schema, read_standard_input("--args") if args == "-" else args)
    except ArgumentSyntaxError as error:
        exit_with_error(str(error))


def _fetch_tool(gateway: "GatewayClient", name: str, version: str | None) -> dict[str, Any] | None:
    """Fetch the tool's schema; return None for an unknown tool, so that the call itself is refused and recorded."""
    try:
        tool_info: dict[str, Any] = gateway.get(build_tool_path(name), version=version)
    except GatewayRefusal as error:
        if str(error.problem.get("status")) in ("401", "403"):
            raise
        return None
    return tool_info


def _send_call(
    gateway: "GatewayClient", body: dict[str, Any], key: str, is_write: bool, *, json: bool, wait: bool
) -> None:
    try:
        answer = gateway.post("/v1/calls", body, {} if body.get("dry_run") else {"Idempotency-Key": key})
    except GatewayRefusal as error:
        tool = {"name": body["tool"]}
        show_problem({"tool": tool, **error.problem})
        if is_write and is_repeatable(error.problem.get("error", {})):
            printer.note(f"  To retry this call safely, repeat it with --key {key}")
        raise CommandExit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        if body.get("dry_run"):
            exit_with_error("Stopped waiting. Nothing was changed.", EXIT_FAILED)
        retry_hint = f", or repeat it safely with --key {key}" if is_write else ""
        exit_with_error(f"Stopped waiting. The gateway finishes the call: see deputize calls{retry_hint}.", EXIT_FAILED)
    if answer.value.get("dry_run"):
        from deputize.interfaces.cli.render.preview import show_dry_run

        show_dry_run(answer.value, json=json)
        return
    if "poll_after_ms" in answer.value:
        show_accepted_call(gateway, answer.value, key if is_write else None, json=json, wait=wait)
        return
    show_result(answer.value, answer.headers, key if is_write else None, json=json)


def show_accepted_call(
    gateway: "GatewayClient", envelope: dict[str, Any], key: str | None, *, json: bool, wait: bool
) -> None:
    """Print how to follow a call that has not ended yet; with `wait`, follow it and print its outcome."""
    call_id, needs_approval = envelope["call_id"], bool(envelope.get("approval"))
    for message in envelope.get("warnings") or ():
        printer.warn(message)
    if needs_approval:
        from deputize.interfaces.cli.render.approvals import show_pending_approval

        show_pending_approval(envelope, key)
    if wait:
        from deputize.interfaces.cli.client.follow import follow_call

        follow_call(gateway, call_id, to_stderr=True)
        show_outcome(gateway.get(build_call_path(call_id)), json=json)
        return
    if json:
        printer.json(envelope)
    if needs_approval:
        raise CommandExit(EXIT_PENDING)
    printer.success(f"{envelope['state']}: call {call_id}")
    printer.note(dim_text(f"  Safe to exit. Follow it: deputize calls watch {call_id}", sys.stderr))


def show_outcome(envelope: dict[str, Any], *, json: bool) -> None:
    """Print the result of a call that ended, or its problem."""
    if envelope.get("is_error"):
        show_problem(envelope)
        raise CommandExit(EXIT_FAILED)
    show_result(envelope, {}, None, json=json)


def show_result(envelope: dict[str, Any], headers: "Mapping[str, str]", key: str | None, *, json: bool) -> None:
    """Print the result of a call, and on stderr what allowed it and how long it took."""
    if json:
        printer.json(envelope)
    printer.line(format_json(envelope.get("result")))
    printer.note(dim_text(_format_footer(envelope, headers, key), sys.stderr))
    for entry in envelope.get("context") or ():
        printer.note(f"  {entry.get('source')} adds: {format_json(entry.get('value'))}")
    for message in envelope.get("warnings") or ():
        printer.warn(message)


def _format_footer(envelope: dict[str, Any], headers: "Mapping[str, str]", key: str | None) -> str:
    rules = ", ".join((envelope.get("decision") or {}).get("rules") or ()) or "?"
    duration = (envelope.get("execution") or {}).get("duration_ms")
    parts = [f"allowed by {rules}"]
    if duration is not None:
        parts.append(f"{duration:.0f} ms" if duration >= 1 else "<1 ms")
    parts += [f"trace …{str(envelope.get('trace_id', ''))[-6:]}", f"call {envelope.get('call_id')}"]
    if key:
        parts.append(f"key {key}")
    if any(name.lower() == "idempotency-replayed" for name in headers):
        parts.append("replayed: nothing was repeated")
    provenance = envelope.get("provenance") or {}
    if provenance.get("is_cached"):
        parts.append(f"cached: {provenance['age_seconds']:.0f} s old")
    return " · ".join(parts)
