"""What a form must show before it is heard, and what every page tells the browser about itself."""

import hmac
from urllib.parse import parse_qsl

from starlette.requests import Request

from deputize.core.errors import Malformed, PermissionDenied, UnsupportedMedia
from deputize.doors.wire import headers_of, read_body

FORM = "application/x-www-form-urlencoded"
_MOST_BYTES = 65_536
_MOST_FIELDS = 16

# No script, no frame, nothing from elsewhere; the one stylesheet is ours. Forms of ours are sent with our origin, which
# `no-referrer` would take from them.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=()",
    "cache-control": "no-store",
}


async def read_form(request: Request, *, origin: str) -> dict[str, str]:
    """The fields of a form that a page of ours sent."""
    require_own_origin(request, origin=origin)
    headers = headers_of(request.scope)
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if media != FORM:
        raise UnsupportedMedia("the body is not declared as a form", advice=f"Send the body as {FORM}.")
    body = await read_body(request.receive, headers, _MOST_BYTES)
    try:
        fields = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=_MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError:
        raise Malformed("the form cannot be read") from None
    if len({name for name, _ in fields}) != len(fields):
        raise Malformed("a field of the form was sent twice")
    return dict(fields)


def require_own_origin(request: Request, *, origin: str) -> None:
    """Every browser says where a form comes from, in one header or the other; what says nothing is no browser."""
    came_from, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if (came_from is None and site is None) or came_from not in (None, origin) or site not in (None, "same-origin"):
        raise PermissionDenied(
            "the form does not come from a page of this console, so nothing was done",
            details={"rule": "own-origin"},
            advice=f"Open the page at {origin} and send the form from there.",
        )


def require_form_token(sent: str | None, expected: str) -> None:
    if sent is None or not hmac.compare_digest(sent.encode(), expected.encode()):
        raise PermissionDenied(
            "the form does not belong to this sign-in, so nothing was done",
            details={"rule": "form-token"},
            advice="Open the page again and send the form from there.",
        )
