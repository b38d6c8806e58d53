"""`deputize approvals`: calls that wait for people, and deciding about them."""

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deputize.core.plain import plain
from deputize.doors.cli.output import NO, OK, REFUSED, Json, Stopped, counted, dim, give_up, printer
from deputize.doors.cli.problems import show_problem
from deputize.doors.cli.remote import Refused, Token, Url, find_gateway

if TYPE_CHECKING:
    from deputize.doors.cli.exchange import Gateway

group = typer.Typer(no_args_is_help=True, help="See calls that wait for a person, and say yes or no to them.")

_AN_ID = "01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b"
_NAME = 120
# Rules that a token of the development issuer cannot meet; the code of the terminal does.
_NOT_IN_PERSON = ("console-audience", "humans-only")

TicketId = Annotated[
    str, typer.Argument(metavar="ID", help="The ticket, or the call it is about; last means the newest that waits.")
]
Code = Annotated[
    str,
    typer.Option(
        metavar="CODE", help="In development: what the terminal of deputize dev shows; - reads it from stdin."
    ),
]
Binding = Annotated[
    str, typer.Option(metavar="HEX", help="What show said: decides about nothing else. Default: what it says now.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask again on a terminal.")]


class Which(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    USED = "used"
    DENIED = "denied"
    EXPIRED = "expired"
    VOID = "void"
    CANCELED = "canceled"
    ALL = "all"


class Word(StrEnum):
    APPROVE = "approve"
    DENY = "deny"


@group.command("list", epilog="Example: deputize approvals list --state all")
def list_approvals(
    state: Annotated[Which, typer.Option(help="Which ones to show.")] = Which.OPEN,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many, newest first.")] = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only tickets older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """What waits for your groups, if you signed in to decide; else what your own calls wait for."""
    answer = find_gateway(url, token).get("/v1/approvals", state=state.value, limit=limit, before=before)
    found: list[dict[str, Any]] = answer["approvals"]
    if json:
        printer.json(answer)
    elif not found:
        printer.line("Nothing waits for a decision." if state is Which.OPEN else "No such tickets.")
    else:
        printer.table(("ticket", "state", "tool", "who", "until"), [_row(each) for each in found])


def _row(ticket: Mapping[str, Any]) -> tuple[str, ...]:
    from deputize.doors.cli.approval_shown import away, who

    agents = [ticket["agent"]] if ticket["agent"] else []
    tool = f"{ticket['tool']['name']} {ticket['tool']['version']}"
    left = away(ticket["expires_at"], now=datetime.now(UTC)) if ticket["state"] == "open" else ""
    return ticket["ticket_id"], ticket["state"], plain(tool, _NAME), who({**ticket, "agents": agents}), left


@group.command(epilog=f"Example: deputize approvals show {_AN_ID}")
def show(ticket_id: TicketId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Who wants what for whom, what it would change, why it was asked, until when, and who may decide."""
    gateway = find_gateway(url, token)
    shown = gateway.get(_path(_meant(gateway, ticket_id)))
    if json:
        printer.json(shown)
        return
    _screen(shown, printer.line)
    _how_to_decide(shown)


def _screen(shown: Mapping[str, Any], write: Callable[[str], None]) -> None:
    from deputize.doors.cli.approval_shown import one_screen

    for line in one_screen(shown, now=datetime.now(UTC)):
        write(line)


def _how_to_decide(shown: Mapping[str, Any]) -> None:
    if shown["state"] != "open":
        return
    named = shown["ticket_id"]
    if not shown["may_decide"] and not _takes_codes(shown):
        printer.aside(f"  you cannot decide: {plain(str(shown['why_not']))}")
        return
    code = "" if shown["may_decide"] else " --code CODE   (the terminal of deputize dev shows it)"
    printer.aside(f"  yes: deputize approvals approve {named}{code}")
    printer.aside(f"  no:  deputize approvals deny {named} --reason '…'{code and ' --code CODE'}")


@group.command(epilog=f"Example: deputize approvals approve {_AN_ID} --reason 'GDPR 881'")
def approve(
    ticket_id: TicketId,
    reason: Annotated[str, typer.Option(help="Kept with the decision.")] = "",
    code: Code = "",
    binding: Binding = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Say yes. The last yes that is needed lets the call go on by itself; nobody approves their own."""
    answer = _decide(find_gateway(url, token), "approve", ticket_id, reason, code=code, binding=binding, yes=yes)
    call_id = answer["call_id"]
    if answer["state"] == "open":
        printer.good("your yes counts; more people have to agree before the call goes on")
    else:
        printer.good(f"approved: call {call_id} goes on by itself")
    printer.aside(dim(f"  follow it with deputize calls watch {call_id}", sys.stderr))


@group.command(epilog=f"Example: deputize approvals deny {_AN_ID} --reason 'not on a Friday'")
def deny(
    ticket_id: TicketId,
    reason: Annotated[str, typer.Option(help="Why; whoever made the call reads it, agents included.")],
    code: Code = "",
    binding: Binding = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Say no. One no ends the call."""
    answer = _decide(find_gateway(url, token), "deny", ticket_id, reason, code=code, binding=binding, yes=yes)
    printer.good(f"denied: call {answer['call_id']} ended, and whoever made it reads your reason")


@group.command("break-glass", epilog=f"Example: deputize approvals break-glass {_AN_ID} --reason 'the site is down'")
def break_glass(
    ticket_id: TicketId,
    reason: Annotated[str, typer.Option(help="What cannot wait; everybody who was asked is told.")],
    code: Code = "",
    binding: Binding = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """In an emergency: let a call go on that nobody who was asked decides. Two people who may have to do it."""
    answer = _decide(find_gateway(url, token), "break-glass", ticket_id, reason, code=code, binding=binding, yes=yes)
    if answer["state"] == "open":
        printer.good("counted, and on record; a second person who may has to do the same")
    else:
        printer.good(f"approved in an emergency: call {answer['call_id']} goes on by itself, and everybody is told")


@group.command(epilog=f"Example: deputize approvals batch approve {_AN_ID} {_AN_ID[:-1]}c --vary id")
def batch(
    word: Annotated[Word, typer.Argument(help="approve or deny.")],
    ticket_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="The tickets, or the calls.")],
    vary: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An argument that may differ; may be given again.")
    ] = None,
    reason: Annotated[str, typer.Option(help="The same for each; a no needs one.")] = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Decide about calls that are equal but for the arguments you name. Each is listed, and decided by itself."""
    gateway = find_gateway(url, token)
    shown = [gateway.get(_path(each)) for each in dict.fromkeys(ticket_ids)]
    if not json:
        _list_alike(shown)
    if not yes:
        _ask_again(f"{word.value} {counted(len(shown), 'call')}")
    tickets = [each["ticket_id"] for each in shown]
    said = {"tickets": tickets, "decision": word.value, "reason": reason, "vary": vary or []}
    answer = gateway.post("/v1/approvals/batch", said).value
    decided: list[dict[str, Any]] = answer["decisions"]
    if json:
        printer.json(answer)
    else:
        rows = [(NO if each.get("refused") else OK, each["ticket_id"], _came_to(each)) for each in decided]
        printer.table(("", "ticket", "what came of it"), rows)
    if any(each.get("refused") for each in decided):
        raise Stopped(REFUSED)


@group.command(epilog="Example: deputize approvals suggest > policies/learned.cedar")
def suggest(
    since: Annotated[str, typer.Option(metavar="TIME", help="How far to look back: 30d, 12h, 45m, or a date.")] = "30d",
    days: Annotated[int, typer.Option(min=1, max=90, help="How long a permit holds, from now.")] = 30,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Draft the narrowest permits for what people approve again and again, and try them. Puts nothing in force."""
    from deputize.doors.cli.policy_local import moment
    from deputize.doors.cli.suggested import show_suggestions

    answer = find_gateway(url, token).get("/v1/approvals/suggestions", since=moment(since), days=days)
    if json:
        printer.json(answer)
    else:
        show_suggestions(answer)


def _list_alike(shown: list[dict[str, Any]]) -> None:
    from deputize.doors.cli.approval_shown import arguments_told, who

    def row(each: Mapping[str, Any]) -> tuple[str, ...]:
        arguments = " ".join(arguments_told(each["arguments"]))
        return each["ticket_id"], plain(str(each["tool"]["name"]), _NAME), who(each), arguments

    printer.table(("ticket", "tool", "who", "arguments"), [row(each) for each in shown])


def _came_to(decided: Mapping[str, Any]) -> str:
    if decided.get("refused"):
        return f"left {decided['state']}: {plain(str(decided['why_not']))}"
    return "counted; more people have to agree" if decided["state"] == "open" else str(decided["state"])


def _decide(
    gateway: "Gateway", word: str, ticket_id: str, reason: str, *, code: str, binding: str, yes: bool
) -> dict[str, Any]:
    """About what is shown now, or what was seen before; whoever sits at a terminal sees it first."""
    if ticket_id == "last" and not code and not _is_terminal():
        # Another may have come since somebody looked. A code says which one is meant; a terminal shows it first.
        give_up(f"Name the ticket to {word}: what is the last one by now may not be the one you saw.")
    shown = gateway.get(_path(_meant(gateway, ticket_id)))
    if code == "-":
        code = sys.stdin.readline()
    if _is_terminal() and shown["state"] == "open":
        _screen(shown, printer.aside)
        if not code and not shown["may_decide"] and _takes_codes(shown):
            code = typer.prompt(f"To {word}, type the code of this ticket in the terminal of deputize dev", err=True)
        elif not yes and not code:
            _ask_again(word)
    said = {"reason": reason, "binding": binding or shown["binding"]}
    code = code.strip()
    if not code.isascii() or not code.isprintable():
        give_up("A code is eight letters and digits: type it as the terminal of deputize dev shows it.")
    try:
        answer: dict[str, Any] = gateway.post(
            f"{_path(shown['ticket_id'])}/{word}", said, {"Deputize-Code": code} if code else None
        ).value
    except Refused as refused:
        show_problem(refused.problem)
        rule = refused.problem.get("error", {}).get("details", {}).get("rule")
        if rule in _NOT_IN_PERSON and _takes_codes(shown):
            printer.aside("  in development: add --code with what the terminal of deputize dev shows for this ticket")
        raise Stopped(REFUSED) from None
    if printer.as_json:
        printer.json(answer)
    return answer


def _meant(gateway: "Gateway", ticket_id: str) -> str:
    if ticket_id != "last":
        return ticket_id
    newest: list[dict[str, Any]] = gateway.get("/v1/approvals", limit=1)["approvals"]
    if not newest:
        give_up("Nothing waits for a decision.", REFUSED)
    return str(newest[0]["ticket_id"])


def _takes_codes(shown: Mapping[str, Any]) -> bool:
    return bool(shown["environment"] == "development")


def _ask_again(what: str) -> None:
    if _is_terminal() and not typer.confirm(f"{what[:1].upper()}{what[1:]}?", err=True):
        give_up("Nothing was decided.", REFUSED)


def _is_terminal() -> bool:
    return not printer.as_json and sys.stdin.isatty() and sys.stderr.isatty()


def _path(ticket_id: str) -> str:
    from urllib.parse import quote

    return f"/v1/approvals/{quote(ticket_id, safe='')}"
