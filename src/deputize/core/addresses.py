"""Whether a text is an address that can be asked over HTTP as it stands, by whoever named it. Nothing here asks."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

_VISIBLE = re.compile(r"https?://[\x21-\x7e]+", re.IGNORECASE)


def is_address(url: str) -> bool:
    """An http or https URL with a host, of visible ASCII characters, without a name or a password in it."""
    if not _VISIBLE.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def require_address(url: str | None) -> None:
    if url is not None and not is_address(url):
        raise ValueError("url must be an http or https address of visible characters, without a name or password in it")


HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")]
