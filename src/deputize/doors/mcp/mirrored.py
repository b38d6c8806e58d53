"""Arguments that a tool's schema has repeated in headers (`x-mcp-header`), so that proxies can route by them.

What is repeated must be the same, or a proxy and the tool would act on different words. Above: `calling.py` checks what
came in, the bridge of `cli/mcp.py` repeats what goes out. Below: nothing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from deputize.core.contract import Schema
from deputize.core.mcp import HEADER_MISMATCH, PARAM_HEADER_PREFIX
from deputize.doors.mcp.asked import decoded, encoded
from deputize.doors.mcp.faces import RpcError
from deputize.doors.wire import Header

MARK: Final = "x-mcp-header"
_TOKEN = re.compile(r"^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$")
_TYPES: Final = frozenset({"string", "integer", "boolean"})
_DECIMAL = re.compile(r"^-?[0-9]{1,400}(\.0+)?$")
_DEEPEST = 16


class Mirrored(NamedTuple):
    """One argument, by the names that lead to it, and the header that repeats it."""

    path: tuple[str, ...]
    header: str
    type: str


def mirrored(schema: Schema) -> tuple[Mirrored, ...]:
    """Every argument that is repeated. A schema with a mark that means nothing has none: clients leave such a tool out,
    or send no headers for it.
    """
    found = tuple(_found(schema, ()))
    return () if any(not _TOKEN.match(each.header) or each.type not in _TYPES for each in found) else found


def _found(node: Any, path: tuple[str, ...]) -> Iterator[Mirrored]:
    properties = node.get("properties") if isinstance(node, dict) else None
    if not isinstance(properties, dict) or len(path) > _DEEPEST:
        return
    for name, part in properties.items():
        if isinstance(part, dict):
            if MARK in part:
                kind = part.get("type")
                yield Mirrored((*path, name), str(part[MARK]).lower(), kind if isinstance(kind, str) else "")
            yield from _found(part, (*path, name))


def require_mirrored(marks: tuple[Mirrored, ...], arguments: Mapping[str, Any], raw: list[Header]) -> None:
    """What a header and the arguments say must be the same, or neither says anything."""
    for each in marks:
        name = PARAM_HEADER_PREFIX + each.header
        sent = [value.decode("latin-1").strip() for header, value in raw if header == name.encode()]
        if len(sent) > 1:
            raise RpcError(HEADER_MISMATCH, f"the header {name} was sent more than once")
        value, argument = _value(arguments, each.path), ".".join(each.path)
        meant = _rendered(value)
        if meant is None:
            if sent:
                raise RpcError(HEADER_MISMATCH, f"the header {name} repeats an argument that is not there: {argument}")
        elif not sent:
            raise RpcError(HEADER_MISMATCH, f"the header {name} must repeat the argument {argument}")
        elif not _same(each.type, value, meant, decoded(sent[0])):
            raise RpcError(HEADER_MISMATCH, f"the header {name} does not repeat the argument {argument}")


def headers_for(marks: tuple[Mirrored, ...], arguments: Mapping[str, Any]) -> dict[str, str]:
    """The headers a call of such a tool carries."""
    told = ((each, _rendered(_value(arguments, each.path))) for each in marks)
    return {PARAM_HEADER_PREFIX + each.header: encoded(value) for each, value in told if value is not None}


def _value(arguments: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    node: Any = arguments
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _rendered(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _same(kind: str, value: Any, meant: str, told: str | None) -> bool:
    if told is None:
        return False
    if kind == "integer" and not isinstance(value, bool | str) and float(value).is_integer() and _DECIMAL.match(told):
        return int(told.partition(".")[0]) == int(value)
    return told == meant
