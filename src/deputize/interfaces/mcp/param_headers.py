"""Compare the arguments that a tool's schema has repeated in headers (`x-mcp-header`), for proxies to route by.

Header and argument must be equal, or a proxy and the tool would act on different values. `core/mcp/headers.py` reads
which arguments a schema names.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from deputize.core.mcp.constants import HEADER_MISMATCH
from deputize.core.mcp.headers import Path, read_header_params
from deputize.interfaces.asgi_http import Header
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.request import decode_header
from deputize.operations.gateway import ToolView

_DECIMAL = re.compile(r"^-?[0-9]{1,400}(\.0+)?$")
_MAX_ENTRIES: Final = 4096
# Cached by the digest of a tool version, since every call needs it.
_headers_by_digest: OrderedDict[str, Mapping[Path, str]] = OrderedDict()


def require_param_headers(tool_version: ToolView, arguments: Mapping[str, Any], raw_headers: list[Header]) -> None:
    """Require that each repeated header equals its argument, and is absent if the argument is."""
    headers_by_path = _headers_by_digest.get(tool_version.digest)
    if headers_by_path is None:
        headers_by_path = _headers_by_digest[tool_version.digest] = read_header_params(tool_version.input_schema)
        if len(_headers_by_digest) > _MAX_ENTRIES:
            _headers_by_digest.popitem(last=False)
    for path, header in headers_by_path.items():
        _require_same_value(header.lower(), path, arguments, raw_headers)


def _require_same_value(name: str, path: Path, arguments: Mapping[str, Any], raw_headers: list[Header]) -> None:
    header_values = [value.decode("latin-1").strip() for header, value in raw_headers if header == name.encode()]
    if len(header_values) > 1:
        raise RpcError(HEADER_MISMATCH, f"the header {name} was sent more than once")
    value, argument = _get_argument(arguments, path), ".".join(path)
    argument_text = _render_value(value)
    if argument_text is None:
        if header_values:
            raise RpcError(HEADER_MISMATCH, f"the header {name} repeats the argument {argument}, which is missing")
    elif not header_values:
        raise RpcError(HEADER_MISMATCH, f"the header {name} must repeat the argument {argument}")
    elif not _is_same(value, argument_text, decode_header(header_values[0])):
        raise RpcError(HEADER_MISMATCH, f"the header {name} does not repeat the argument {argument}")


def _get_argument(arguments: Mapping[str, Any], path: Path) -> Any:
    node: Any = arguments
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _render_value(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _is_same(value: Any, argument_text: str, header_text: str | None) -> bool:
    """Compare a value with a header. Numbers are equal however they are written: 42 is 42.0."""
    if (
        header_text is not None
        and type(value) in (int, float)
        and float(value).is_integer()
        and _DECIMAL.match(header_text)
    ):
        return int(header_text.partition(".")[0]) == int(value)
    return header_text == argument_text
