"""Read the documents that an imported OpenAPI document refers to, only below the addresses that a person allowed."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deputize.catalog.importers.openapi.document import MAX_DOCUMENT_BYTES, OpenApiDocument
from deputize.catalog.importers.openapi.references import include_references
from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.http_urls import is_http_url
from deputize.execute.egress import Egress

_FETCH_SECONDS = 60.0
_HTTP_OK = 200


def include_allowed_references(
    document: OpenApiDocument, source: str, allowed_places: Sequence[str], folder: Path
) -> OpenApiDocument:
    """Include the documents below the allowed URLs and folders; references to others stay, and are refused later.

    Paths are relative to `folder`.
    """
    if not allowed_places:
        return document
    is_file = not source.startswith(("https://", "http://"))
    roots = [_parse_root(each, folder, is_file=is_file) for each in allowed_places]
    address = (folder / source).resolve().as_uri() if is_file else source
    return include_references(
        document,
        address,
        is_allowed=lambda url: any(_is_below(url, root) for root in roots),
        fetch=lambda url: _read_file(url, roots) if url.startswith("file:") else _fetch(url),
    )


def _parse_root(text: str, folder: Path, *, is_file: bool) -> str:
    """Return the URL of an allowed place."""
    if text.startswith(("https://", "http://")):
        parts = urlsplit(text) if is_http_url(text) else None
        if parts is None or parts.query or parts.fragment:
            raise ConfigError(f"--allow-ref {text} is not a URL without user name, query and fragment: correct it.")
        return text
    if not is_file:
        raise ConfigError(f"--allow-ref {text} is a folder, and the document comes from a URL: name a URL.")
    try:
        return (folder / text).resolve(strict=True).as_uri()
    except OSError as error:
        raise ConfigError(f"--allow-ref {text} cannot be read ({error.strerror}): name a folder or a URL.") from None


def _is_below(url: str, root: str) -> bool:
    """Tell whether a URL is an allowed one or below it. A path that could climb after decoding is not."""
    target, place = urlsplit(url), urlsplit(root)
    if (target.scheme, target.netloc) != (place.scheme, place.netloc) or target.query:
        return False
    path, top = unquote(target.path), unquote(place.path)
    has_steps = "%" in path or "\\" in path or not {".", ".."}.isdisjoint(path.split("/"))
    return not has_steps and (path == top or path.startswith(top.rstrip("/") + "/"))


def _fetch(url: str) -> bytes:
    async def send() -> tuple[int, bytes]:
        # The person who allows a URL may name a private host.
        egress = Egress(frozenset({urlsplit(url).hostname or ""}), max_bytes=MAX_DOCUMENT_BYTES, seconds=_FETCH_SECONDS)
        try:
            # Redirects are not followed: they would lead out of what was allowed.
            return await egress.request("GET", url)
        finally:
            await egress.aclose()

    try:
        status, body = asyncio.run(send())
    except Problem as problem:
        raise ConfigError(f"{url} cannot be fetched: {problem.message}.") from None
    if status != _HTTP_OK:
        raise ConfigError(f"{url} cannot be fetched: it answered with HTTP {status}. Allow the right URL.")
    return body


def _read_file(url: str, roots: Sequence[str]) -> bytes:
    try:
        path = Path(unquote(urlsplit(url).path)).resolve(strict=True)
        # Symbolic links may lead out of the folder.
        if not path.is_file() or not any(_is_below(path.as_uri(), root) for root in roots):
            raise ConfigError(f"{path} is not a file in a folder that --allow-ref names: move it there.")
        with path.open("rb") as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url[:200]} cannot be read ({error}): correct the reference.") from None
