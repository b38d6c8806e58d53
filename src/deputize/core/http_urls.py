"""Check that a text is a URL for HTTP requests. Nothing here sends a request."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

_VISIBLE_URL = re.compile(r"https?://[\x21-\x7e]+", re.IGNORECASE)


def is_http_url(url: str) -> bool:
    """Tell whether this is an http or https URL with a host, in visible ASCII, without user name and password."""
    if not _VISIBLE_URL.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def require_http_url(url: str | None) -> None:
    """Raise `ValueError` if this is not such a URL."""
    if url is not None and not is_http_url(url):
        raise ValueError("url must be an http or https URL in visible ASCII characters, without user name and password")


HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")]
