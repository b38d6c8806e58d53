"""The one seam to the network, and what may be asked through it: https, or this very machine; no redirect is followed.

Whatever a server or its authorization server names is an address from outside. Above: everything else in this folder.
Below: `execute/egress.py`, which resolves, checks and pins every address once more.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

import orjson

from deputize.core.errors import Problem, UpstreamSignInFailed
from deputize.core.frozen import frozen

FORM: Final = "application/x-www-form-urlencoded"
JSON: Final = "application/json"
LONGEST_URL: Final = 2048


class Web(Protocol):
    """The status and the body of any answer to one request; a redirect is such an answer."""

    async def __call__(
        self, method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]: ...


@frozen
class Said:
    """An answer, and the object it holds; empty where it holds none."""

    status: int
    document: dict[str, Any]

    @property
    def good(self) -> bool:
        return self.status in (200, 201)

    @property
    def error(self) -> str:
        """The OAuth word for what went wrong, if it is one: the rest of an answer is anybody's text."""
        word = self.document.get("error")
        fits = isinstance(word, str) and len(word) <= 64 and word.isascii() and word.replace("_", "").isalpha()
        return str(word) if fits else f"HTTP {self.status}"


async def document_at(web: Web, url: str) -> dict[str, Any] | None:
    """The document at an address, or None where there is none. An address that may not be asked is a Problem."""
    require_safe(url, "an address it names")
    try:
        status, body = await web("GET", url, headers={"accept": JSON})
    except Problem:
        return None
    said = _read(status, body)
    return said.document if status == 200 and said.document else None


async def posted(web: Web, url: str, body: bytes, *, kind: str, headers: Mapping[str, str] | None = None) -> Said:
    require_safe(url, "an address it names")
    status, answer = await web(
        "POST", url, body=body, headers={"content-type": kind, "accept": JSON, **(headers or {})}
    )
    return _read(status, answer)


def _read(status: int, body: bytes) -> Said:
    try:
        document = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        document = {}
    return Said(status=status, document=document if isinstance(document, dict) else {})


def is_safe(url: object) -> bool:
    """https, or without TLS only what never leaves this machine; no password, no fragment."""
    place = split(url)
    if place is None or place.fragment or place.username is not None or place.password is not None:
        return False
    return place.scheme == "https" or is_loopback(place.hostname or "")


def require_safe(url: object, what: str) -> str:
    if not isinstance(url, str) or not is_safe(url):
        raise UpstreamSignInFailed(f"{what} is no https address, or names a password")
    return url


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split(url: object) -> SplitResult | None:
    if not isinstance(url, str) or len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        place = urlsplit(url)
        usable = place.scheme in ("http", "https") and bool(place.hostname) and (place.port or 1) > 0
    except ValueError:
        return None
    return place if usable else None
