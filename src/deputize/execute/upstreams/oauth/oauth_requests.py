"""Send OAuth requests: only to https or loopback URLs, without following redirects.

URLs named by a server or an authorization server are untrusted. `execute/egress.py` also resolves, checks and pins
every host.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

import orjson

from deputize.core.errors import Problem, UpstreamSignInFailed
from deputize.core.value_types import frozen

FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"
LONGEST_URL: Final = 2048


class HttpRequester(Protocol):
    """Sends one request and returns status and body of any response, redirects included."""

    async def __call__(
        self, method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]: ...


@frozen
class OAuthResponse:
    """The status of a response and its JSON object; empty if it has none."""

    status: int
    document: dict[str, Any]

    @property
    def is_success(self) -> bool:
        return self.status in (200, 201)

    @property
    def error_code(self) -> str:
        """The OAuth error code, or the HTTP status if there is none; other text of the response is untrusted."""
        code = self.document.get("error")
        is_valid = isinstance(code, str) and len(code) <= 64 and code.isascii() and code.replace("_", "").isalpha()
        return str(code) if is_valid else f"HTTP {self.status}"


async def fetch_document(http: HttpRequester, url: str) -> dict[str, Any] | None:
    """Fetch a JSON document; None if there is none. An unsafe URL raises a Problem."""
    require_safe_url(url, "a URL that the server names")
    try:
        status, body = await http("GET", url, headers={"accept": JSON})
    except Problem:
        return None
    response = _parse_response(status, body)
    return response.document if status == 200 and response.document else None


async def post_request(
    http: HttpRequester, url: str, body: bytes, *, content_type: str, headers: Mapping[str, str] | None = None
) -> OAuthResponse:
    """Post a request body and return the response."""
    require_safe_url(url, "a URL that the server names")
    status, answer = await http(
        "POST", url, body=body, headers={"content-type": content_type, "accept": JSON, **(headers or {})}
    )
    return _parse_response(status, answer)


def _parse_response(status: int, body: bytes) -> OAuthResponse:
    try:
        document = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        document = {}
    return OAuthResponse(status=status, document=document if isinstance(document, dict) else {})


def is_safe_url(url: object) -> bool:
    """Tell whether a URL is https, or http to this machine, without user name, password and fragment."""
    parts = split_url(url)
    if parts is None or parts.fragment or parts.username is not None or parts.password is not None:
        return False
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def require_safe_url(url: object, label: str) -> str:
    """Return the URL if it is safe, or raise."""
    if not isinstance(url, str) or not is_safe_url(url):
        raise UpstreamSignInFailed(f"{label} is not an https URL, or contains a user name, password or fragment")
    return url


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_url(url: object) -> SplitResult | None:
    """Split an http or https URL; None if it is invalid."""
    if not isinstance(url, str) or len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return None
    return parts if is_usable else None
