"""What HTTP carries beside a message: who asks, what is asked for, and arguments that a tool's schema wants repeated.

Above: `http.py` and `listing.py`. Values that do not fit a header travel in the protocol's own base64 form.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.core.errors import CredentialMissing
from deputize.core.mcp import PARAM_HEADER_PREFIX

Path = tuple[str, ...]
_FITS: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
_ENCODED: Final = re.compile(r"=\?base64\?.*\?=")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_CREDENTIAL: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_REPEATED: Final = "x-mcp-header"
_KINDS: Final = frozenset({"string", "integer", "boolean"})


def carried(value: str) -> str:
    """A value as a header can carry it."""
    if _FITS.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def credential(header: str, secret: str) -> tuple[str, str]:
    """The header that carries a credential; in Authorization, as a bearer token."""
    if not _CREDENTIAL.fullmatch(secret):
        raise CredentialMissing("the credential cannot be sent in a header", nothing_happened=True)
    return header, f"Bearer {secret}" if header.lower() == "authorization" else secret


def repeated(schema: Any) -> dict[Path, str]:
    """Which arguments a tool wants in headers, by where they stand. Empty where the wish is not one the protocol knows:
    then nobody repeats anything.
    """
    return _wishes(schema) or {}


def wishes_wrongly(schema: Any) -> bool:
    """Whether a tool wants something in headers that the protocol does not know: such a tool is not used at all."""
    return _wishes(schema) is None


def _wishes(schema: Any) -> dict[Path, str] | None:
    found: dict[Path, str] = {}
    seen: set[str] = set()
    for path, node in _positions(schema, ()):
        token = node.get(_REPEATED)
        if token is None:
            continue
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token) or token.lower() in seen:
            return None
        if not isinstance(node.get("type"), str) or node["type"] not in _KINDS:
            return None
        seen.add(token.lower())
        found[path] = PARAM_HEADER_PREFIX + token
    return found


def _positions(schema: Any, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every property that is reached through properties alone."""
    if not isinstance(schema, dict) or len(path) > 16:
        return
    yield path, schema
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, each in properties.items():
            yield from _positions(each, (*path, name))


def repeat(wanted: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers for one call; an argument that is not there has none."""
    headers = {}
    for path, header in wanted.items():
        value: Any = arguments
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers[header] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            headers[header] = carried(str(value))
    return headers
