"""`deputize calls`: looking at calls, watching one, asking one to stop, for one again, for an earlier point of one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.doors.cli.output import REFUSED, Json, Stopped, give_up, pretty, printer, require_behind
from deputize.doors.cli.remote import Token, Url, call_path, find_gateway

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Gateway

group = typer.Typer(
    invoke_without_command=True, help="Look at calls, watch one, stop one, ask for one again, send one back."
)

CallId = Annotated[str, typer.Argument(metavar="ID", help="The id that deputize call printed; last means the newest.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="At most so many, newest first.")]


@group.callback(epilog="Example: deputize calls")
def calls(context: typer.Context, url: Url = "", token: Token = "", json: Json = False) -> None:
    if context.invoked_subcommand is not None:
        require_behind(context)
        return
    _list(find_gateway(url, token), 20, None)


@group.command("list", epilog="Example: deputize calls list --limit 5")
def list_calls(
    limit: Limit = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only calls older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Writes and queued calls you made, newest first. Other reads leave an audit entry only, and are shown by id."""
    _list(find_gateway(url, token), limit, before)


def _list(gateway: "Gateway", limit: int, before: str | None) -> None:
    answer = gateway.get("/v1/calls", limit=limit, before=before)
    found: list[dict[str, Any]] = answer["calls"]
    if printer.as_json:
        printer.json(answer)
        return
    if not found:
        printer.line("No writes yet. Reads are not listed; deputize calls show ID knows them too.")
        return
    rows = [
        (each["call_id"], each["state"], f"{each['tool']['name']} {each['tool']['version']}", _when(each), _who(each))
        for each in found
    ]
    printer.table(("call", "state", "tool", "when", "who"), rows)


def _when(facts: dict[str, Any]) -> str:
    return str(facts.get("created_at", "")).partition(".")[0].replace("T", " ").removesuffix("+00:00")


def _who(facts: dict[str, Any]) -> str:
    user, agent = str(facts.get("user") or ""), facts.get("agent")
    return f"{agent} for {user}" if agent else user


def _meant(gateway: "Gateway", call_id: str) -> str:
    if call_id != "last":
        return call_id
    newest: list[dict[str, Any]] = gateway.get("/v1/calls", limit=1)["calls"]
    if not newest:
        give_up("There is no call yet: make one with deputize call.", REFUSED)
    return str(newest[0]["call_id"])


@group.command(epilog="Example: deputize calls show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """How a call ended, as it was answered; of one still running or a read, what is known of it."""
    gateway = find_gateway(url, token)
    value = gateway.get(call_path(_meant(gateway, call_id)))
    if json:
        printer.json(value)
    else:
        printer.line(pretty(value))


@group.command(epilog="Example: deputize calls watch last")
def watch(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Follow a call until it ends, through whatever it waits for, with what its tool says of how far it is. Ctrl-C
    stops the watching, never the call. Ends with 1 if the call did not succeed.
    """
    from deputize.doors.cli.watching import follow

    gateway = find_gateway(url, token)
    if follow(gateway, _meant(gateway, call_id)) != "succeeded":
        raise Stopped(REFUSED)


@group.command(epilog="Example: deputize calls cancel 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def cancel(call_id: CallId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Ask a call to stop; what cannot be stopped any more says so."""
    gateway = find_gateway(url, token)
    answer = gateway.post(f"{call_path(_meant(gateway, call_id))}/cancel").value
    if json:
        printer.json(answer)
    did = "canceled" if answer.get("cancel") == "canceled" else "asked to stop"
    printer.good(f"{did}: {answer.get('detail', answer.get('state'))}")


@group.command(epilog="Example: deputize calls retry 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b --wait")
def retry(
    call_id: CallId,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it, and print its result.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Try a queued call again that came to no good end. What may have acted is never repeated blindly."""
    from deputize.doors.cli.call import taken_on

    gateway = find_gateway(url, token)
    call_id = _meant(gateway, call_id)
    answer = gateway.post(f"{call_path(call_id)}/retry").value
    again = answer["call_id"]
    if wait or answer.get("approval"):
        taken_on(gateway, answer, None, json=json, wait=wait)
        return
    if json:
        printer.json(answer)
    printer.good(f"{answer['state']}: call {again}" + (" goes on" if again == call_id else " in its place"))


@group.command(epilog="Example: deputize calls rollback last half")
def rollback(
    call_id: CallId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The checkpoint, as its tool named it.")],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Send a run back to a checkpoint that its tool gave a name, to go on from there. What it did since stays done."""
    gateway = find_gateway(url, token)
    answer = gateway.post(f"{call_path(_meant(gateway, call_id))}/rollback", {"checkpoint": name}).value
    if json:
        printer.json(answer)
    printer.good(f"{answer['state']}: call {answer['call_id']} goes on from {answer['checkpoint']}")
