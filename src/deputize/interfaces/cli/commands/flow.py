"""Define `deputize flow`: check, draw, run and watch flows."""

import time
from typing import Annotated, Any, Literal

import typer

from deputize.interfaces.cli.client.target import Token, Url, build_tool_path, find_gateway
from deputize.interfaces.cli.commands.call import call
from deputize.interfaces.cli.commands.tool import ToolFile, check
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, Json, exit_with_error, printer

group = typer.Typer(help="Check, draw, run and watch flows: tools whose steps are calls of other tools.")

_POLL_SECONDS = 0.5
_OPEN_STATES = ("queued", "running", "awaiting_approval")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The flow, for example orders.refund.")]
CallId = Annotated[str, typer.Argument(metavar="ID", help="Id of the flow's call, as printed by deputize flow run.")]


@group.command("check", epilog="Example: deputize flow check tools/refund.yaml")
def check_flow(file: ToolFile, json: Json = False) -> None:
    """Check a manifest with flows and the tools that they name, and list every reason why it is refused."""
    check(file, json=json)


@group.command(epilog="Example: deputize flow graph orders.refund --format mermaid")
def graph(
    name: Name,
    form: Annotated[
        Literal["text", "mermaid", "svg"], typer.Option("--format", metavar="FORM", help="text, mermaid or svg.")
    ] = "text",
    run: Annotated[str | None, typer.Option(metavar="ID", help="Show how far the steps of this call are.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Draw the steps of a flow, with the live state of one of its calls."""
    from deputize.core.contract.flow import Flow
    from deputize.interfaces.flow_graph import draw_mermaid, draw_svg_document, draw_text

    gateway = find_gateway(url, token)
    statuses: dict[str, str] = {}
    if run is None:
        definition: Any = gateway.get(build_tool_path(name))["contract"].get("flow")
    else:
        view = gateway.get(f"/v1/flows/{run}")
        if view["tool"] != name:
            exit_with_error(f"{run} is a call of {view['tool']}: deputize flow graph {view['tool']} --run {run}")
        definition, statuses = view["flow"], _read_statuses(view)
    if definition is None:
        exit_with_error(f"{name} is not a flow: deputize tool show {name} shows what it is.")
    flow = Flow.model_validate(definition)
    if json:
        printer.json({"flow": definition, "statuses": statuses})
        return
    lines = [draw_svg_document(flow, statuses)] if form == "svg" else []
    for line in lines or (draw_mermaid if form == "mermaid" else draw_text)(flow, statuses):
        printer.line(line)


@group.command("run", epilog="Example: deputize flow run orders.refund order_id=o1")
def run_flow(
    name: Name,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments, parsed by the flow's schema.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object; - reads them from stdin.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: repeating a call with the same key returns the first outcome.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Call a flow, and wait for its outcome. Ctrl-C stops waiting, but not the flow."""
    call(name, words, args=args, key=key, wait=True, url=url, token=token, json=json)


@group.command(epilog="Example: deputize flow watch 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def watch(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Follow the steps of a flow until it ends. Exits with 1 if it does not succeed."""
    gateway = find_gateway(url, token)
    statuses: dict[str, str] = {}
    while True:
        view = gateway.get(f"/v1/flows/{call_id}")
        for step in view["steps"]:
            if statuses.get(step["name"], "waiting") != step["status"]:
                _print_step(step)
        statuses = _read_statuses(view)
        if view["state"] not in _OPEN_STATES:
            break
        time.sleep(_POLL_SECONDS)
    _print_compensation(call_id, view["compensation"])
    printer.event("ended", {"call_id": call_id, "state": view["state"]}, f"{view['tool']} {view['state']}")
    if view["state"] != "succeeded":
        raise CommandExit(EXIT_FAILED)


def _read_statuses(view: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in view["steps"]}


def _print_compensation(call_id: str, compensation: dict[str, Any] | None) -> None:
    """Print what of a failed flow stays, and what a person can do about it."""
    left = [] if compensation is None else compensation["left"]
    for each in left:
        if printer.as_json:
            printer.json({"event": "left", **each})
        printer.warn(f"{each['step']} stays ({each['reason']}): {each['detail']}")
    if left:
        printer.note(f"See what can be taken back: deputize undo {call_id} --plan")


def _print_step(step: dict[str, Any]) -> None:
    reasons = [each["error"]["message"] for each in step["calls"] if each["error"]]
    waits = "" if not any(each["state"] == "awaiting_approval" for each in step["calls"]) else ", waits for approval"
    text = f"{step['name']} {step['status']}{waits}{f': {reasons[-1]}' if reasons else ''}"
    printer.event("step", step, text)
