"""`deputize servers`: the MCP servers whose tools are served here, how they stand, and what they say otherwise than
agreed. Texts of servers come from the gateway with everything hidden made visible.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from deputize.core.plain import plain
from deputize.doors.cli.output import NO, NOTE, OK, Json, counted, dim, give_up, mark, printer, tinted
from deputize.doors.cli.remote import Token, Url, find_gateway

group = typer.Typer(no_args_is_help=True, help="See MCP servers whose tools are served here, and review their changes.")

_STATUS = {"connected": OK, "unavailable": NO, "unseen": NOTE}
_NOW = {"same": "", "changed": "changed since", "removed": "not offered any more", None: ""}
_TOOL = "tool:"

Server = Annotated[str, typer.Argument(metavar="SERVER", help="Its name in deputize.toml.")]
_ITEM = "tool:NAME, NAME, resource:URI, prompt:NAME, a pattern such as 'get_*', or instructions; may be given again."


@group.command("list", epilog="Example: deputize servers list")
def list_servers(url: Url = "", token: Token = "", json: Json = False) -> None:
    """Every server of the settings: whether it answers, how many tools it has here, and how many changes wait."""
    answer = find_gateway(url, token).get("/v1/servers")
    found: list[dict[str, Any]] = answer["servers"]
    if json:
        printer.json(answer)
    elif not found:
        printer.line("No servers: name one under [[servers]] in deputize.toml, or take them from a file that another")
        printer.line("client has, with deputize import .mcp.json.")
    else:
        rows = [
            (
                _STATUS[each["status"]], each["name"], each["status"], str(each["tools"]), str(each["changes"]),
                _when(each["since"]), each["why"] or each["title"] or "",
            )
            for each in found
        ]  # fmt: skip
        printer.table(("", "server", "status", "tools", "to review", "since", ""), rows)


@group.command(epilog="Example: deputize servers show shop")
def show(server: Server, url: Url = "", token: Token = "", json: Json = False) -> None:
    """How it stands, and everything that was agreed to of what it says."""
    shown = find_gateway(url, token).get(_path(server))
    printer.json(shown) if json else _tell(shown)


@group.command("test", epilog="Example: deputize servers test shop")
def look(server: Server, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Look at it now. What is new or changed is registered or held by the rules that always hold."""
    shown = find_gateway(url, token).post(f"{_path(server)}/test").value
    if json:
        printer.json(shown)
        return
    _tell(shown)
    for name in shown["registered"]:
        printer.good(f"{name} is registered")
    if shown["opened"]:
        printer.warn(f"{counted(shown['opened'], 'change')} held: deputize servers review {shown['name']}")


def _tell(shown: Mapping[str, Any]) -> None:
    state = f"{mark(_STATUS[shown['status']], sys.stdout)} {shown['name']} is {shown['status']}"
    since = f" since {_when(shown['since'])}" if shown["since"] else ""
    printer.line(f"{state}{since}{': ' + shown['why'] if shown['why'] else ''}")
    called = " ".join(each for each in (shown["title"], shown["version"]) if each)
    speaks = f"MCP {shown['protocol']}" if shown["protocol"] else ""
    for line in (f"{shown['kind']} {shown['address']}", ", ".join(each for each in (called, speaks) if each)):
        if line:
            printer.line(f"  {line}")
    rows = [
        (
            plain(each["item"], 120), f"{each['tool']} {each['version']}" if each["tool"] else "",
            each["accepted_by"], _when(each["accepted_at"]), _NOW[each["now"]],
        )
        for each in shown["agreed"]
    ]  # fmt: skip
    if rows:
        printer.table(("agreed to", "registered as", "by", "at", ""), rows)
    for each in shown["left_out"]:
        printer.warn(f"left out: {each}")
    if shown["changes"]:
        printer.warn(f"{counted(shown['changes'], 'change')} to review: deputize servers review {shown['name']}")


@group.command(epilog="Example: deputize servers review shop --accept get_order")
def review(
    server: Server,
    accept: Annotated[list[str] | None, typer.Option(metavar="ITEM", help=f"Agree to it: {_ITEM}")] = None,
    reject: Annotated[list[str] | None, typer.Option(metavar="ITEM", help=f"Turn it down: {_ITEM}")] = None,
    reason: Annotated[str, typer.Option(help="Kept with the decision; needed to reject.")] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """What the server says otherwise than agreed, with what differs; and your decision about it.

    An accepted tool is registered as its next major version. Until then, and after a rejection, an old read goes on and
    everything else of that tool stops.
    """
    gateway = find_gateway(url, token)
    changes: list[dict[str, Any]] = gateway.get(f"{_path(server)}/changes")["changes"]
    if not accept and not reject:
        printer.json({"changes": changes}) if json else _tell_changes(server, changes)
        return
    if reject and not reason:
        give_up("Say why with --reason: it is kept for whoever looks at this later.")
    decisions = [(each, "accept") for each in _meant(changes, accept or ())]
    decisions += [(each, "reject") for each in _meant(changes, reject or ())]
    twice = {each["item"] for each, word in decisions if word == "accept"} & {
        each["item"] for each, word in decisions if word == "reject"
    }
    if twice:
        give_up(f"{plain(sorted(twice)[0], 120)} cannot be both accepted and rejected: name it once.")
    decided = []
    for each, word in decisions:
        # By the digest of what was shown: should the server have changed it again meanwhile, this is refused.
        asked = {"item": each["item"], "digest": each["digest"], "decision": word, "reason": reason}
        done = gateway.post(f"{_path(server)}/changes/decide", asked).value
        decided.append(done)
        told = f": {done['registered']}" if done["registered"] else ""
        printer.good(f"{each['shown']} {word}ed{told}")
    if json:
        printer.json({"decided": decided})


def _meant(changes: Sequence[dict[str, Any]], asked: Sequence[str]) -> list[dict[str, Any]]:
    """The changes that were named, each once."""
    from fnmatch import fnmatchcase

    found: list[dict[str, Any]] = []
    for name in asked:
        matching = [
            each
            for each in changes
            if name in (each["item"], each["item"].removeprefix(_TOOL))
            or fnmatchcase(each["item"].removeprefix(_TOOL), name.removeprefix(_TOOL))
        ]
        if not matching:
            waiting = ", ".join(each["shown"] for each in changes) or "nothing"
            give_up(f"No change of {plain(name, 120)} waits; what waits is: {waiting}.")
        found += [each for each in matching if each not in found]
    return found


def _tell_changes(server: str, changes: Sequence[Mapping[str, Any]]) -> None:
    if not changes:
        printer.line("Nothing waits for a review.")
        return
    for each in changes:
        agreed = f"   {each['tool']} {each['version']} was agreed to" if each["tool"] else ""
        printer.line(f"{mark(NOTE, sys.stdout)} {each['shown']}   {each['kind']}{agreed}")
        for flag in each["flags"]:
            where = f" at {flag['where']}" if flag["where"] else ""
            printer.line(f"  {tinted(flag['code'], 'yellow', sys.stdout)}{where}: {flag['sentence']}")
            if flag["excerpt"]:
                printer.line(f"      {flag['excerpt']}")
        for place in each["differences"]:
            printer.line(f"  {dim(place['where'] or '/', sys.stdout)}")
            for sign, text, colour in (("-", place["before"], "red"), ("+", place["after"], "green")):
                for line in () if text is None else text.splitlines():
                    printer.line("  " + tinted(f"{sign} {line}", colour, sys.stdout))
    first = changes[0]["item"].removeprefix(_TOOL)
    shown = first if first.replace("_", "a").replace("-", "a").isalnum() and first.isascii() else "ITEM"
    printer.aside(f"  agree:     deputize servers review {server} --accept {shown}")
    printer.aside(f"  turn down: deputize servers review {server} --reject {shown} --reason '…'")


def _path(server: str) -> str:
    from urllib.parse import quote

    return f"/v1/servers/{quote(server, safe='')}"


def _when(at: str | None) -> str:
    return "" if at is None else at.partition(".")[0].replace("T", " ").removesuffix("+00:00")
