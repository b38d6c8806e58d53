"""Arguments that a tool's schema has repeated in headers (`x-mcp-header`), so that proxies can route by them.

What is repeated must be the same, or a proxy and the tool would act on different words. Above: `calling.py`. Below:
`execute/upstreams/headers.py`, which knows what such a schema asks for.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from deputize.catalog.snapshot import ToolVersion
from deputize.core.mcp import HEADER_MISMATCH
from deputize.doors.mcp.asked import decoded
from deputize.doors.mcp.faces import RpcError
from deputize.doors.wire import Header
from deputize.execute.upstreams.headers import Path, repeated

_DECIMAL = re.compile(r"^-?[0-9]{1,400}(\.0+)?$")
_MOST: Final = 4096
# By the digest of a version, since every call of it asks.
_wanted: OrderedDict[str, Mapping[Path, str]] = OrderedDict()


def require_mirrored(found: ToolVersion, arguments: Mapping[str, Any], raw: list[Header]) -> None:
    """What a header and the arguments say must be the same, or neither says anything."""
    wanted = _wanted.get(found.digest)
    if wanted is None:
        wanted = _wanted[found.digest] = repeated(found.tool.model_schema)
        if len(_wanted) > _MOST:
            _wanted.popitem(last=False)
    for path, header in wanted.items():
        _require_same(header.lower(), path, arguments, raw)


def _require_same(name: str, path: Path, arguments: Mapping[str, Any], raw: list[Header]) -> None:
    sent = [value.decode("latin-1").strip() for header, value in raw if header == name.encode()]
    if len(sent) > 1:
        raise RpcError(HEADER_MISMATCH, f"the header {name} was sent more than once")
    value, argument = _value(arguments, path), ".".join(path)
    meant = _rendered(value)
    if meant is None:
        if sent:
            raise RpcError(HEADER_MISMATCH, f"the header {name} repeats an argument that is not there: {argument}")
    elif not sent:
        raise RpcError(HEADER_MISMATCH, f"the header {name} must repeat the argument {argument}")
    elif not _same(value, meant, decoded(sent[0])):
        raise RpcError(HEADER_MISMATCH, f"the header {name} does not repeat the argument {argument}")


def _value(arguments: Mapping[str, Any], path: Path) -> Any:
    node: Any = arguments
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _rendered(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _same(value: Any, meant: str, told: str | None) -> bool:
    """Numbers are the same however they are written: 42 is 42.0."""
    if told is not None and type(value) in (int, float) and float(value).is_integer() and _DECIMAL.match(told):
        return int(told.partition(".")[0]) == int(value)
    return told == meant
