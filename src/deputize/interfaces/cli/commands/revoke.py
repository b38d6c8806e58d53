"""Define `deputize revoke`: end the authority of a user, an agent, a token or a delegation for good."""

import sys
from typing import Annotated, Any

import typer

from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    Json,
    exit_with_error,
    format_count,
    printer,
)

group = typer.Typer(no_args_is_help=True, help="Revoke a user, an agent, a token or a delegation for good.")

Reason = Annotated[str, typer.Option(help="Stored with the revocation and shown by deputize revoke list.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation on a terminal.")]
_EFFECTS = {
    "user": "no call starts with a token of this user, or with anything delegated from one",
    "agent": "no call starts that this agent takes part in, or with a token that it got for itself",
    "token": "no call starts with this token, or with anything delegated from it",
    "grant": "no call starts with this delegation, or with one made from it",
}


@group.command(epilog="Example: deputize revoke user mallory --reason 'left the company'")
def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user's subject, as calls and grants show it.")],
    issuer: Annotated[str, typer.Option(help="Revoke this issuer's user only, not that of every issuer.")] = "",
    reason: Reason = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Revoke a user: every token of theirs, and everything they delegated."""
    _revoke("user", name, reason, yes, url, token, issuer=issuer)


@group.command(epilog="Example: deputize revoke agent notes-bot --reason 'its machine was stolen'")
def agent(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name, as calls and grants show it.")],
    reason: Reason = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Revoke an agent: everything delegated to it or through it, and the tokens that it got for itself."""
    _revoke("agent", name, reason, yes, url, token)


@group.command("token", epilog="Example: deputize revoke token 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def revoke_token(
    value: Annotated[
        str, typer.Argument(metavar="ID", help="The token's jti. Of a whole token, only its jti is sent.")
    ],
    reason: Reason = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Revoke a token, and everything delegated from it."""
    _revoke("token", _read_token_id(value), reason, yes, url, token)


@group.command(epilog="Example: deputize revoke grant 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def grant(
    grant_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the grant, as printed by deputize token exchange.")
    ],
    reason: Reason = "",
    yes: Yes = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Revoke a delegation of anyone, and all derived from it. For your own: deputize grants revoke."""
    _revoke("grant", grant_id, reason, yes, url, token)


@group.command("list", epilog="Example: deputize revoke list")
def list_revocations(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 20,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List what was revoked, newest first: by whom, when and why."""
    answer = find_gateway(url, token).get("/v1/revocations", limit=limit)
    revocations: list[dict[str, Any]] = answer["revocations"]
    if json:
        printer.json(answer)
    elif not revocations:
        printer.line("Nothing was revoked.")
    else:
        rows = [
            (
                each["kind"],
                each["value"],
                each["revoked_at"].partition("+")[0].replace("T", " "),
                each["revoked_by"],
                each["reason"],
            )
            for each in revocations
        ]
        printer.table(("kind", "value", "since", "by", "reason"), rows)


def _revoke(kind: str, value: str, reason: str, yes: bool, url: str, token: str, *, issuer: str = "") -> None:
    gateway = find_gateway(url, token)
    if not yes and not printer.as_json and sys.stdin.isatty() and sys.stderr.isatty():
        printer.note(f"{_EFFECTS[kind][:1].upper()}{_EFFECTS[kind][1:]}. This cannot be undone.")
        if not typer.confirm(f"Revoke the {kind} {value}?", err=True):
            exit_with_error("Nothing was revoked.", EXIT_FAILED)
    body = {"kind": kind, "value": value, "reason": reason, **({"issuer": issuer} if issuer else {})}
    answer = gateway.post("/v1/revocations", body).value
    if printer.as_json:
        printer.json(answer)
    printer.success(f"Revoked the {kind} {answer['value']}: {_EFFECTS[kind]}")
    if len(answer["issuers"] or ()) > 1:
        printer.note(f"  in every issuer: {', '.join(answer['issuers'])}")
    if answer["known"] is False:
        similar = f" Did you mean {', '.join(answer['similar'])}?" if answer["similar"] else ""
        printer.warn(f"This gateway has never seen the {kind} {answer['value']}.{similar} It is revoked all the same.")
    if answer["ended_grants"]:
        printer.note(f"  {format_count(answer['ended_grants'], 'active delegation')} ended with it")


def _read_token_id(value: str) -> str:
    """Read the `jti` of a token, so that the token itself stays here; anything else is an id already."""
    import base64
    import json

    parts = value.strip().split(".")
    if len(parts) != 3 or not parts[0].startswith("eyJ"):
        return value
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        token_id = claims.get("jti")
    except (ValueError, AttributeError):
        token_id = None
    if not isinstance(token_id, str) or not token_id:
        exit_with_error("This token has no jti, so it cannot be revoked by itself: revoke its user, agent or grant.")
    return token_id
