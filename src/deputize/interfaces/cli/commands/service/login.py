"""Define `deputize login`, `logout` and `whoami`: a person's own token for a gateway, stored on this machine."""

import time
from typing import Annotated, Any

import typer

from deputize.core.config_error import ConfigError
from deputize.core.display_text import to_display_text
from deputize.interfaces.cli.client.target import Token, Url, find_gateway, parse_gateway_url
from deputize.interfaces.cli.render.output import Json, format_duration, printer

LoginUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar="DEPUTIZE_URL", help="URL of the gateway; required, since a token is stored for one gateway."
    ),
]
Device = Annotated[
    bool, typer.Option("--device", help="Show a code to type on another device, instead of opening a browser.")
]


def login(
    scope: Annotated[
        list[str] | None,
        typer.Option(help="A scope to ask for; repeat for more. Default: those that the gateway's tools need."),
    ] = None,
    device: Device = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Sign in again even if the provider remembers you, as operators have to.")
    ] = False,
    url: LoginUrl = "",
    json: Json = False,
) -> None:
    """Sign in at the gateway's identity provider, and store the token for this gateway. Commands then use it.

    The token is in the system's keyring if deputize[keyring] is installed, else in a file that only you can read.
    """
    from deputize.interfaces.cli.client.sign_in.session import sign_in, store_token

    gateway_url = _require_url(url)
    token = sign_in(gateway_url, scopes=scope or (), device=device, is_fresh=fresh)
    place = store_token(token)
    facts = _describe_token(gateway_url, token.access_token, token.expires_at)
    if json:
        printer.json({**facts, "stored_in": place})
        return
    printer.success(f"Signed in at {token.issuer} as {facts['user']} for {gateway_url}")
    printer.line(f"  scopes   {facts['scopes'] or 'none'}")
    printer.line(f"  expires  {_describe_time_left(token.expires_at)}")
    printer.line(f"  stored   in {place}")
    if not token.refresh_token:
        printer.note("  The provider gave no refresh token, so you sign in again when it expires.")


def logout(url: LoginUrl = "", json: Json = False) -> None:
    """Delete the stored token for a gateway, and revoke it at the identity provider where that is possible."""
    from deputize.interfaces.cli.client.sign_in.session import sign_out

    gateway_url = _require_url(url)
    token, is_revoked = sign_out(gateway_url)
    if json:
        printer.json({"gateway": gateway_url, "deleted": token is not None, "revoked": is_revoked})
    elif token is None:
        printer.line(f"You were not signed in for {gateway_url}.")
    elif is_revoked:
        printer.success(f"Signed out of {gateway_url}: the token was revoked at {token.issuer} and deleted")
    else:
        printer.success(f"Signed out of {gateway_url}: the token was deleted")
        seconds = token.expires_at - int(time.time())
        if seconds > 0:
            printer.warn(
                f"It could not be revoked at {token.issuer}: it stays valid for another {format_duration(seconds)}."
            )


def whoami(url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show the identity that commands use at a gateway: user, tenant, issuer, scopes, groups and expiry."""
    gateway = find_gateway(url, token)
    tenant = gateway.get("/v1/surface", limit=1)["scope"]["tenant"]
    facts = {**_describe_token(gateway.url, gateway.token, 0), "tenant": tenant}
    if json:
        printer.json(facts)
        return
    who = f"{facts['agent']} for {facts['user']}" if facts["agent"] else str(facts["user"])
    printer.line(f"{who} in tenant {tenant} at {gateway.url}")
    printer.line(f"  issuer    {facts['issuer']}")
    printer.line(f"  audience  {' '.join(facts['audience'])}")
    printer.line(f"  scopes    {facts['scopes'] or 'none'}")
    printer.line(f"  groups    {' '.join(facts['groups']) or 'none'}")
    printer.line(f"  expires   {_describe_time_left(facts['expires_at'])}")


def _require_url(url: str) -> str:
    if not url:
        raise ConfigError("Name the gateway with --url or DEPUTIZE_URL: a token is stored for one gateway.")
    return parse_gateway_url(url)


def _describe_token(url: str, token: str, expires_at: int) -> dict[str, Any]:
    from deputize.interfaces.cli.client.sign_in.session import read_claims

    claims = read_claims(token)
    audience, groups, actor = claims.get("aud") or [], claims.get("groups") or [], claims.get("act") or {}
    return {
        "gateway": url,
        "user": to_display_text(str(claims.get("sub") or "unknown")),
        "agent": to_display_text(str(actor.get("sub", ""))) if isinstance(actor, dict) else "",
        "issuer": to_display_text(str(claims.get("iss") or "unknown")),
        "audience": [str(each) for each in (audience if isinstance(audience, list) else [audience])],
        "scopes": to_display_text(str(claims.get("scope") or "")),
        "groups": [to_display_text(str(each)) for each in groups] if isinstance(groups, list) else [],
        "expires_at": expires_at or int(claims.get("exp") or 0),
    }


def _describe_time_left(expires_at: int) -> str:
    seconds = expires_at - int(time.time())
    if not expires_at:
        return "at a time that the token does not tell"
    return f"in {format_duration(seconds)}" if seconds > 0 else "expired: run deputize login"
