"""Define `deputize approvals`: list, show and decide approval requests."""

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.refusal import GatewayRefusal
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    NO,
    OK,
    CommandExit,
    Json,
    dim_text,
    exit_with_error,
    format_count,
    printer,
)
from deputize.interfaces.cli.render.problems import show_problem

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

group = typer.Typer(no_args_is_help=True, help="List, show and decide approval requests.")

_EXAMPLE_ID = "01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b"
_MAX_NAME_LENGTH, _BINDING_LENGTH = 120, 64
# Rules that a token of the development issuer cannot meet; a code from the terminal can.
_TERMINAL_CODE_RULES = ("console-audience", "humans-only")

RequestId = Annotated[
    str, typer.Argument(metavar="ID", help="The approval request, or its call; last means the newest open request.")
]
Code = Annotated[
    str,
    typer.Option(metavar="CODE", help="In development: the code that deputize dev prints; - reads it from stdin."),
]
BindingDigest = Annotated[
    str,
    typer.Option(
        "--binding",
        metavar="HEX",
        help="Decide only if the request still has this binding, as printed by show. Required to approve without a "
        "terminal.",
    ),
]
SignIn = Annotated[
    bool,
    typer.Option("--sign-in", help="Sign in for this decision: with a token for approvals, which is not stored."),
]
Wait = Annotated[
    bool | None,
    typer.Option("--wait/--no-wait", help="Show the outcome of the call as it arrives. Default: on a terminal."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation on a terminal.")]
RequestState = Literal["open", "approved", "used", "denied", "expired", "void", "canceled", "all"]
Decision = Literal["approve", "deny"]


@group.command("list", epilog="Example: deputize approvals list --state all")
def list_approvals(
    state: Annotated[RequestState, typer.Option(help="Show only requests in this state.")] = "open",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Show only requests older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List the requests your groups can decide, if your token is for approvals; else those of your own calls."""
    answer = find_gateway(url, token).get("/v1/approvals", state=state, limit=limit, before=before)
    approvals: list[dict[str, Any]] = answer["approvals"]
    if json:
        printer.json(answer)
    elif not approvals:
        printer.line("No open approval requests." if state == "open" else "No matching approval requests.")
    else:
        columns = ("approval request", "state", "tool", "caller", "expires")
        printer.table(columns, [_make_row(each) for each in approvals])


def _make_row(approval: Mapping[str, Any]) -> tuple[str, ...]:
    from deputize.interfaces.cli.render.approvals import describe_caller, format_time_left

    agents = [approval["agent"]] if approval["agent"] else []
    tool = f"{approval['tool']['name']} {approval['tool']['version']}"
    is_open = approval["state"] == "open"
    return (
        approval["approval_id"],
        approval["state"],
        to_display_text(tool, _MAX_NAME_LENGTH),
        describe_caller({**approval, "agents": agents}),
        format_time_left(approval["expires_at"], now=datetime.now(UTC)) if is_open else "",
    )


@group.command(epilog=f"Example: deputize approvals show {_EXAMPLE_ID}")
def show(request_id: RequestId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show a request: the caller, the arguments, the expected changes, the rules, the deadline and the approvers."""
    gateway = find_gateway(url, token)
    approval = gateway.get(_build_approval_path(_resolve_request_id(gateway, request_id)))
    if json:
        printer.json(approval)
        return
    _print_approval(approval, printer.line)
    _print_decision_commands(approval)


def _print_approval(approval: Mapping[str, Any], write: Callable[[str], None]) -> None:
    from deputize.interfaces.cli.render.approvals import render_approval

    for line in render_approval(approval, now=datetime.now(UTC)):
        write(line)


def _print_decision_commands(approval: Mapping[str, Any]) -> None:
    if approval["state"] != "open":
        return
    request_id = approval["approval_id"]
    if not approval["may_decide"] and not _can_use_code(approval):
        printer.note(f"  You cannot decide this request: {to_display_text(str(approval['why_not']))}")
        return
    code = "" if approval["may_decide"] else " --code CODE"
    # A code is made for one binding.
    version = code or f" --binding {to_display_text(str(approval['binding']), _BINDING_LENGTH)}"
    printer.note(f"  Approve: deputize approvals approve {request_id}{version}")
    printer.note(f"  Deny:    deputize approvals deny {request_id} --reason '…'{code}")
    if code:
        printer.note("  The terminal of deputize dev shows the CODE.")


@group.command(epilog=f"Example: deputize approvals approve {_EXAMPLE_ID} --reason 'GDPR 881'")
def approve(
    request_id: RequestId,
    reason: Annotated[str, typer.Option(help="Recorded with the decision.")] = "",
    code: Code = "",
    binding_digest: BindingDigest = "",
    yes: Yes = False,
    wait: Wait = None,
    sign_in: SignIn = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Approve a request. The call continues automatically when all approvals are given. You cannot approve your own."""
    gateway = _sign_in_to_decide(url) if sign_in else find_gateway(url, token)
    answer = _send_decision(gateway, "approve", request_id, reason, code=code, binding_digest=binding_digest, yes=yes)
    call_id = answer["call_id"]
    if answer["state"] == "open":
        printer.success("Approval recorded. The call needs more approvals before it continues.")
    else:
        printer.success(f"Approved: call {call_id} continues automatically")
        if _is_terminal() if wait is None else wait:
            _show_outcome(gateway, answer["approval_id"])
            return
    printer.note(dim_text(f"  Follow it: deputize calls watch {call_id}", sys.stderr))


@group.command(epilog=f"Example: deputize approvals deny {_EXAMPLE_ID} --reason 'not on a Friday'")
def deny(
    request_id: RequestId,
    reason: Annotated[str, typer.Option(help="Recorded with the decision, and shown to the caller, agents included.")],
    code: Code = "",
    binding_digest: BindingDigest = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Deny a request. One denial ends the call."""
    gateway = find_gateway(url, token)
    answer = _send_decision(gateway, "deny", request_id, reason, code=code, binding_digest=binding_digest, yes=yes)
    printer.success(f"Denied: call {answer['call_id']} will not run, and its caller sees your reason")


@group.command(
    "break-glass", epilog=f"Example: deputize approvals break-glass {_EXAMPLE_ID} --reason 'the site is down'"
)
def break_glass(
    request_id: RequestId,
    reason: Annotated[str, typer.Option(help="Why this cannot wait. Recorded, and sent to all approvers.")],
    code: Code = "",
    binding_digest: BindingDigest = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Emergency override: needs two authorised people."""
    gateway = find_gateway(url, token)
    answer = _send_decision(
        gateway, "break-glass", request_id, reason, code=code, binding_digest=binding_digest, yes=yes
    )
    if answer["state"] == "open":
        printer.success("Emergency override recorded. A second authorised person must run the same command.")
    else:
        printer.success(
            f"Approved by emergency override: call {answer['call_id']} continues automatically, and all approvers "
            "are notified"
        )


@group.command(epilog=f"Example: deputize approvals batch approve {_EXAMPLE_ID} {_EXAMPLE_ID[:-1]}c --vary id")
def batch(
    decision: Annotated[Decision, typer.Argument(metavar="DECISION", help="approve or deny.")],
    request_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="The approval requests, or their calls.")],
    vary: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An argument that may differ; repeat for more.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Recorded with each decision; required to deny.")] = "",
    bindings: Annotated[
        list[str] | None,
        typer.Option(
            "--binding",
            metavar="HEX",
            help="The binding of a request, as printed by show; repeat for each ID, in their order. Required to "
            "approve without a terminal.",
        ),
    ] = None,
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Decide several requests whose calls differ only in the arguments you name. Each gets its own decision."""
    gateway = find_gateway(url, token)
    request_ids = list(dict.fromkeys(request_ids))
    if bindings and len(bindings) != len(request_ids):
        exit_with_error(f"Give one --binding for each of the {len(request_ids)} approval requests, in their order.")
    if decision == "approve" and not bindings and not _is_terminal():
        _refuse_unseen(request_ids[0])
    approvals = [gateway.get(_build_approval_path(each)) for each in request_ids]
    if not json:
        _print_batch(approvals)
    if not yes:
        _require_confirmation(f"{decision} {format_count(len(approvals), 'call')}")
    ids = [each["approval_id"] for each in approvals]
    binding_by_id = dict(zip(ids, bindings or [each["binding"] for each in approvals], strict=True))
    body = {"approval_ids": ids, "decision": decision, "reason": reason, "vary": vary or [], "bindings": binding_by_id}
    answer = gateway.post("/v1/approvals/batch", body).value
    decisions: list[dict[str, Any]] = answer["decisions"]
    if json:
        printer.json(answer)
    else:
        rows = [
            (NO if each.get("refusal_slug") else OK, each["approval_id"], _describe_decision(each))
            for each in decisions
        ]
        printer.table(("", "approval request", "result"), rows)
    if any(each.get("refusal_slug") for each in decisions):
        raise CommandExit(EXIT_FAILED)


@group.command(epilog="Example: deputize approvals suggest > policies/learned.cedar")
def suggest(
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Start of the period: 30d, 12h or 45m ago, or a date; in UTC.")
    ] = "30d",
    days: Annotated[int, typer.Option(min=1, max=90, help="How many days a permit stays valid.")] = 30,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Draft the narrowest permits for calls that people keep approving, and backtest them. Activates nothing."""
    from deputize.interfaces.cli.client.times import parse_time
    from deputize.interfaces.cli.render.suggestions import show_suggestions

    answer = find_gateway(url, token).get("/v1/approvals/suggestions", since=parse_time(since, "since"), days=days)
    if json:
        printer.json(answer)
    else:
        show_suggestions(answer)


def _print_batch(approvals: list[dict[str, Any]]) -> None:
    from deputize.interfaces.cli.render.approvals import describe_caller, render_arguments

    def make_row(each: Mapping[str, Any]) -> tuple[str, ...]:
        arguments = " ".join(render_arguments(each["arguments"]))
        return (
            each["approval_id"],
            to_display_text(str(each["tool"]["name"]), _MAX_NAME_LENGTH),
            describe_caller(each),
            arguments,
        )

    printer.table(("approval request", "tool", "caller", "arguments"), [make_row(each) for each in approvals])


def _describe_decision(decision: Mapping[str, Any]) -> str:
    if decision.get("refusal_slug"):
        return f"not decided, still {decision['state']}: {to_display_text(str(decision['why_not']))}"
    return "recorded; needs more approvals" if decision["state"] == "open" else str(decision["state"])


def _send_decision(
    gateway: "GatewayClient", decision: str, request_id: str, reason: str, *, code: str, binding_digest: str, yes: bool
) -> dict[str, Any]:
    """Decide a request. The binding ensures that the decision is about what was shown."""
    if request_id == "last" and not code and not _is_terminal():
        # A newer request may have arrived. A code names one request, and a terminal shows it before it is decided.
        exit_with_error(f"Name the approval request to {decision}: without a terminal, last may mean a newer one.")
    if decision != "deny" and not binding_digest and not code and not _is_terminal():
        _refuse_unseen(request_id)
    approval = gateway.get(_build_approval_path(_resolve_request_id(gateway, request_id)))
    if code == "-":
        code = sys.stdin.readline()
    if _is_terminal() and approval["state"] == "open":
        _print_approval(approval, printer.note)
        if not code and not approval["may_decide"] and _can_use_code(approval):
            code = typer.prompt(f"To {decision}, type the code that deputize dev shows for this request", err=True)
        elif not yes and not code:
            _require_confirmation(decision)
    body = {"reason": reason, "binding": binding_digest or approval["binding"]}
    code = code.strip()
    if not code.isascii() or not code.isprintable():
        exit_with_error("The code is invalid: it has eight letters and digits, as the terminal of deputize dev shows.")
    try:
        answer: dict[str, Any] = gateway.post(
            f"{_build_approval_path(approval['approval_id'])}/{decision}",
            body,
            {"Deputize-Code": code} if code else None,
        ).value
    except GatewayRefusal as error:
        show_problem(error.problem)
        rule = error.problem.get("error", {}).get("details", {}).get("rule")
        if rule in _TERMINAL_CODE_RULES and _can_use_code(approval):
            printer.note("  In development: add --code with the code that deputize dev shows for this request.")
        raise CommandExit(EXIT_FAILED) from None
    if printer.as_json:
        printer.json(answer)
    return answer


def _sign_in_to_decide(url: str) -> "GatewayClient":
    """Sign in for one decision. The token is kept in memory only: a stored one could decide without the person."""
    from deputize.interfaces.cli.client.rest_client import GatewayClient
    from deputize.interfaces.cli.client.sign_in.session import sign_in
    from deputize.interfaces.cli.client.target import parse_gateway_url

    gateway_url = parse_gateway_url(url)
    return GatewayClient(url=gateway_url, token=sign_in(gateway_url, for_approvals=True).access_token)


def _show_outcome(gateway: "GatewayClient", request_id: str) -> None:
    """Show the states of the approved call until it has ended. Approvers see the state, not the result."""
    from deputize.interfaces.cli.client.follow import wait_for_outcome

    def load_state() -> str:
        return str(gateway.get(_build_approval_path(request_id))["call_state"])

    state = wait_for_outcome(load_state)
    if printer.as_json:
        printer.json({"call_state": state})
    if state != "succeeded":
        raise CommandExit(EXIT_FAILED)


def _refuse_unseen(request_id: str) -> NoReturn:
    """Refuse to approve what no one was shown: a binding read at this moment would be of any version."""
    exit_with_error(
        "Nothing was approved: without a terminal that shows the request, say which version you saw. Read it with "
        f"deputize approvals show {to_display_text(request_id, _MAX_NAME_LENGTH)}, then add the --binding that it "
        "prints, or in development the --code of the terminal of deputize dev."
    )


def _resolve_request_id(gateway: "GatewayClient", request_id: str) -> str:
    if request_id != "last":
        return request_id
    newest: list[dict[str, Any]] = gateway.get("/v1/approvals", limit=1)["approvals"]
    if not newest:
        exit_with_error("There is no open approval request.", EXIT_FAILED)
    return str(newest[0]["approval_id"])


def _can_use_code(approval: Mapping[str, Any]) -> bool:
    return bool(approval["environment"] == "development")


def _require_confirmation(action: str) -> None:
    if _is_terminal() and not typer.confirm(f"{action[:1].upper()}{action[1:]}?", err=True):
        exit_with_error("Nothing was decided.", EXIT_FAILED)


def _is_terminal() -> bool:
    return not printer.as_json and sys.stdin.isatty() and sys.stderr.isatty()


def _build_approval_path(request_id: str) -> str:
    from urllib.parse import quote

    return f"/v1/approvals/{quote(request_id, safe='')}"
