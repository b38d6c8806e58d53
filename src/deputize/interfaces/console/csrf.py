"""Protect the console's forms against forgery, and set the security headers of every page."""

import hmac
from urllib.parse import parse_qsl

from starlette.requests import Request

from deputize.core.errors import MalformedRequest, PermissionDenied, UnsupportedMedia
from deputize.interfaces.asgi_http import parse_headers, read_body

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_MAX_BYTES = 65_536
_MAX_FIELDS = 16

_POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
# No scripts, no frames, nothing from other sites; one stylesheet of our own. `no-referrer` would take the origin from
# our own forms, so the policy is `same-origin`.
SECURITY_HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=()",
    "cache-control": "no-store",
}


def build_script_headers(nonce: str, *urls: str) -> dict[str, str]:
    """Build the headers of a page that only shows: our own script runs in it, and may read these addresses only."""
    policy = f"{_POLICY}; script-src 'nonce-{nonce}'; connect-src {' '.join(urls)}"
    return {**SECURITY_HEADERS, "content-security-policy": policy}


async def read_form(request: Request, *, origin: str, max_bytes: int = _MAX_BYTES) -> dict[str, str]:
    """Read the fields of a form that one of our pages sent."""
    require_own_origin(request, origin=origin)
    headers = parse_headers(request.scope)
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if media != FORM_MEDIA_TYPE:
        raise UnsupportedMedia("the body is not declared as a form", advice=f"Send the body as {FORM_MEDIA_TYPE}.")
    body = await read_body(request.receive, headers, max_bytes)
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=_MAX_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError:
        raise MalformedRequest("the form cannot be read") from None
    if len({name for name, _ in fields}) != len(fields):
        raise MalformedRequest("a field of the form was sent twice")
    return dict(fields)


def require_own_origin(request: Request, *, origin: str) -> None:
    """Refuse a form that another site or a script sent. Every browser names the origin in one of two headers, and that
    a person navigated in a third.
    """
    origin_header, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if (
        (origin_header is None and site is None)
        or origin_header not in (None, origin)
        or site not in (None, "same-origin")
        or request.headers.get("sec-fetch-mode") not in (None, "navigate")
    ):
        raise PermissionDenied(
            "the form was not sent from a page of this console, so nothing was done",
            details={"rule": "own-origin"},
            advice=f"Open the page at {origin} and send the form from there.",
        )


def require_form_token(form_token: str | None, session_token: str) -> None:
    """Refuse a form that was rendered for another session."""
    if form_token is None or not hmac.compare_digest(form_token.encode(), session_token.encode()):
        raise PermissionDenied(
            "the form belongs to another session, so nothing was done",
            details={"rule": "form-token"},
            advice="Open the page again and send the form from there.",
        )
