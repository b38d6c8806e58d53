"""Encode what MCP over HTTP carries in headers: names, credentials and arguments that a tool's schema repeats there.

A value that does not fit a header is sent in the base64 form that the protocol defines.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.core.errors import CredentialMissing
from deputize.core.mcp.constants import PARAM_HEADER_PREFIX

Path = tuple[str, ...]
_PLAIN_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
_BASE64_VALUE: Final = re.compile(r"=\?base64\?.*\?=")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_CREDENTIAL: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_HEADER_KEYWORD: Final = "x-mcp-header"
_PARAM_TYPES: Final = frozenset({"string", "integer", "boolean"})


def encode_header_value(value: str) -> str:
    """Encode a value so that a header can carry it."""
    if _PLAIN_VALUE.fullmatch(value) and not _BASE64_VALUE.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def build_credential_header(header: str, secret: str) -> tuple[str, str]:
    """Build the header that carries a credential; in Authorization, as a bearer token."""
    if not _CREDENTIAL.fullmatch(secret):
        raise CredentialMissing(
            "the credential contains characters that a header cannot carry; store it without line breaks",
            nothing_happened=True,
        )
    return header, f"Bearer {secret}" if header.lower() == "authorization" else secret


def read_header_params(schema: Any) -> dict[Path, str]:
    """Read which arguments a tool repeats in headers, by their path.

    Return an empty mapping if the schema declares them in a form the protocol does not know.
    """
    return _parse_header_params(schema) or {}


def has_invalid_header_params(schema: Any) -> bool:
    """Tell whether a tool declares header arguments in an unknown form; such a tool is not used at all."""
    return _parse_header_params(schema) is None


def _parse_header_params(schema: Any) -> dict[Path, str] | None:
    headers: dict[Path, str] = {}
    used_tokens: set[str] = set()
    for path, node in _iter_properties(schema, ()):
        token = node.get(_HEADER_KEYWORD)
        if token is None:
            continue
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token) or token.lower() in used_tokens:
            return None
        if not isinstance(node.get("type"), str) or node["type"] not in _PARAM_TYPES:
            return None
        used_tokens.add(token.lower())
        headers[path] = PARAM_HEADER_PREFIX + token
    return headers


def _iter_properties(schema: Any, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield every property that is reached through `properties` alone, with its path."""
    if not isinstance(schema, dict) or len(path) > 16:
        return
    yield path, schema
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, each in properties.items():
            yield from _iter_properties(each, (*path, name))


def build_param_headers(header_params: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Build the headers for one call, without those of absent arguments."""
    headers = {}
    for path, header in header_params.items():
        value: Any = arguments
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers[header] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            headers[header] = encode_header_value(str(value))
    return headers
