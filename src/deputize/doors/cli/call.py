"""`deputize call`: one governed call, with its result on stdout and how it came about on stderr."""

import sys
import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.doors.cli.output import REFUSED, Json, Stopped, dim, give_up, pretty, printer
from deputize.doors.cli.problems import show_problem
from deputize.doors.cli.remote import Refused, Token, Url, complete_tool, find_gateway, tool_path
from deputize.doors.cli.values import NotAnArgument, arguments_from

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Answer, Gateway


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
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Call a tool. A write acts once per idempotency key; one is made up when none is given."""
    gateway = find_gateway(url, token)
    shown = _shown(gateway, name, version)
    try:
        whole = sys.stdin.read() if args == "-" else args
        arguments = arguments_from(words or (), (shown or {}).get("input_schema") or {}, whole)
    except NotAnArgument as error:
        give_up(str(error))
    body: dict[str, Any] = {"tool": name, "arguments": arguments}
    body |= {"version": version} if version else {}
    body |= {"deadline_ms": deadline} if deadline else {}
    body |= {"session": session} if session else {}
    writes = shown is None or shown.get("mutation_class") != "read"
    _send(gateway, body, key or str(uuid.uuid4()), writes, json)


def _shown(gateway: "Gateway", name: str, version: str | None) -> dict[str, Any] | None:
    """What the tool takes; unknown here, the call itself is refused, so that the refusal is on record."""
    try:
        shown: dict[str, Any] = gateway.get(tool_path(name), version=version)
    except Refused as refused:
        if str(refused.problem.get("status")) in ("401", "403"):
            raise
        return None
    return shown


def _send(gateway: "Gateway", body: dict[str, Any], key: str, writes: bool, json: bool) -> None:
    try:
        answer = gateway.post("/v1/calls", body, {"Idempotency-Key": key})
    except Refused as refused:
        tool = {"name": body["tool"]}
        show_problem({"tool": tool, **refused.problem})
        if writes and refused.problem.get("error", {}).get("retryable"):
            printer.aside(f"  to repeat exactly this call: --key {key}")
        raise Stopped(REFUSED) from None
    except KeyboardInterrupt:
        again = f": see deputize calls, or repeat it safely with --key {key}" if writes else ""
        give_up(f"Stopped waiting. The gateway carries the call to its end{again}.", REFUSED)
    if json:
        printer.json(answer.value)
    printer.line(_result(answer.value))
    printer.aside(dim(_footer(answer, key if writes else None), sys.stderr))
    for added in answer.value.get("context") or ():
        printer.aside(f"  {added.get('source')} adds: {pretty(added.get('value'))}")
    for warning in answer.value.get("warnings") or ():
        printer.warn(warning)


def _result(envelope: dict[str, Any]) -> str:
    return pretty(envelope.get("result"))


def _footer(answer: "Answer", key: str | None) -> str:
    envelope = answer.value
    rules = ", ".join((envelope.get("decision") or {}).get("rules") or ()) or "?"
    duration = (envelope.get("execution") or {}).get("duration_ms")
    parts = [f"allowed by {rules}"]
    if duration is not None:
        parts.append(f"{duration:.0f} ms" if duration >= 1 else "<1 ms")
    parts += [f"trace …{str(envelope.get('trace_id', ''))[-6:]}", f"call {envelope.get('call_id')}"]
    if key:
        parts.append(f"key {key}")
    if any(name.lower() == "idempotency-replayed" for name in answer.headers):
        parts.append("replayed, nothing was done again")
    return " · ".join(parts)
