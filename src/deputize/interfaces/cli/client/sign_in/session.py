"""Get a person's token for a gateway: by signing in, from what was stored, or with the refresh token."""

import base64
import json
import os
import time
import webbrowser
from collections.abc import Sequence
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.sign_in.browser_flow import sign_in_with_browser
from deputize.interfaces.cli.client.sign_in.device_flow import sign_in_with_code
from deputize.interfaces.cli.client.sign_in.issuer_client import (
    IssuerRefusal,
    build_audience_fields,
    load_endpoints,
    load_login_offer,
    post_form,
)
from deputize.interfaces.cli.local.stored_tokens import StoredToken, delete_token, load_token, lock_token, save_token
from deputize.interfaces.cli.render.output import printer

# A token that ends within this time is renewed first.
_SPARE_SECONDS = 30


def sign_in(
    url: str, *, scopes: Sequence[str] = (), device: bool = False, is_fresh: bool = False, for_approvals: bool = False
) -> StoredToken:
    """Sign a person in for a gateway, and return the token without storing it.

    With `for_approvals` it is one for deciding approvals: fresh, without a refresh token, and for that audience.
    """
    offer = load_login_offer(url)
    audience = offer.console_audience if for_approvals else offer.audience
    if audience is None:
        raise ConfigError(
            f"{url} accepts no decisions from {offer.issuer}: set console_audience under [[identity.issuers]] there, "
            f"or decide in the console, {url}/console."
        )
    endpoints = load_endpoints(offer.issuer)
    is_renewable = endpoints.has_refresh_tokens and not for_approvals
    wanted_scopes = ["openid", *(["offline_access"] if is_renewable else []), *(scopes or offer.scopes)]
    prompts = [*(["login"] if is_fresh or for_approvals else []), *(["consent"] if is_renewable else [])]
    try:
        if device or (not _has_browser() and endpoints.device):
            answer = sign_in_with_code(endpoints, offer.client_id, audience, wanted_scopes, show_code=_show_code)
        else:
            answer = sign_in_with_browser(
                endpoints, offer.client_id, audience, wanted_scopes, prompt=" ".join(prompts), show_url=_show_url
            )
    except IssuerRefusal as refusal:
        raise ConfigError(f"{offer.issuer} did not sign you in ({refusal}): check client and scopes there.") from None
    return StoredToken(
        gateway=url,
        issuer=offer.issuer,
        client_id=offer.client_id,
        audience=audience,
        **_read_answer(answer),
        token_url=endpoints.token,
        revocation_url=endpoints.revocation,
    )


def find_stored_token(url: str) -> str | None:
    """Return the stored token for a gateway, renewed if needed; None if no one signed in; refuse one that expired."""
    token = load_token(url)
    if token is None or token.expires_at > time.time() + _SPARE_SECONDS:
        return None if token is None else token.access_token
    with lock_token(url):
        token = load_token(url)
        if token is None:
            return None
        if token.expires_at <= time.time() + _SPARE_SECONDS:
            token = _renew(token)
    return token.access_token


def _renew(token: StoredToken) -> StoredToken:
    if token.refresh_token:
        fields = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "client_id": token.client_id}
        try:
            answer = post_form(token.token_url, {**fields, **build_audience_fields(token.audience)})
        except IssuerRefusal:
            pass
        else:
            renewal = _read_answer({"refresh_token": token.refresh_token, "scope": token.scopes, **answer})
            new_token = StoredToken(
                gateway=token.gateway,
                issuer=token.issuer,
                client_id=token.client_id,
                audience=token.audience,
                token_url=token.token_url,
                revocation_url=token.revocation_url,
                **renewal,
            )
            save_token(new_token)
            return new_token
    elif token.expires_at > time.time():
        return token
    raise ConfigError(f"Your sign-in for {token.gateway} has expired: run deputize login --url {token.gateway}.")


def store_token(token: StoredToken) -> str:
    """Store the token of a new sign-in, and return where. No command that is renewing the old one overwrites it."""
    with lock_token(token.gateway):
        return save_token(token)


def sign_out(url: str) -> tuple[StoredToken | None, bool]:
    """Revoke and delete the stored token, once no command is renewing it; return it, and whether it was revoked."""
    with lock_token(url):
        token = load_token(url)
        is_revoked = token is not None and revoke_token(token)
        delete_token(url)
    return token, is_revoked


def revoke_token(token: StoredToken) -> bool:
    """Revoke a token at its issuer (RFC 7009); tell whether the issuer can and did."""
    if not token.revocation_url:
        return False
    secret, hint = (
        (token.refresh_token, "refresh_token") if token.refresh_token else (token.access_token, "access_token")
    )
    try:
        post_form(token.revocation_url, {"token": secret, "token_type_hint": hint, "client_id": token.client_id})
    except (IssuerRefusal, ConfigError):
        return False
    return True


def read_claims(token: str) -> dict[str, Any]:
    """Read the claims of a token without verifying it, which the gateway does; empty if it is not a JWT."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _read_answer(answer: dict[str, Any]) -> dict[str, Any]:
    access_token = str(answer.get("access_token") or "")
    claims = read_claims(access_token)
    seconds = answer.get("expires_in")
    expires_at = int(claims.get("exp") or (time.time() + int(seconds) if seconds else 0))
    return {
        "access_token": access_token,
        "refresh_token": str(answer.get("refresh_token") or ""),
        "expires_at": expires_at,
        "scopes": str(answer.get("scope") or claims.get("scope") or ""),
    }


def _has_browser() -> bool:
    if os.environ.get("SSH_CONNECTION"):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _show_url(url: str) -> None:
    printer.note("Sign in in your browser. If it does not open, open this address on this machine:")
    printer.note(f"  {url}")
    if _has_browser():
        webbrowser.open(url)


def _show_code(url: str, code: str) -> None:
    printer.note(f"Open {url} on any device, and compare or type the code {code}")
