"""Find every piece of code that can open a connection, so that a new one that no place covers fails the proof.

A use is named after its module and what it uses, as in `composition/worker.py egress.send`. What counts: the outbound
client and its methods, functions of the standard library that connect or resolve, its HTTP clients, and every package
of others that is not known to stay on this machine.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

_NETWORK_MODULES = frozenset(
    {"ftplib", "http.client", "imaplib", "nntplib", "poplib", "smtplib", "socketserver", "telnetlib", "urllib.request",
     "xmlrpc.client"}
)  # fmt: skip
_NETWORK_CALLS = frozenset(
    {"connect_ex", "create_connection", "create_datagram_endpoint", "create_unix_connection", "getaddrinfo",
     "gethostbyname", "insecure_channel", "open_connection", "open_unix_connection", "resolve_allowed_addresses",
     "secure_channel", "sock_connect", "urlopen"}
)  # fmt: skip
_EGRESS_METHODS = frozenset({"dial", "exchange", "get", "post", "request", "send"})
_EGRESS_MODULE = "execute/egress.py"
# Packages of others that open no connection by themselves.
LOCAL_PACKAGES = frozenset(
    {"cedarpy", "cryptography", "fastapi", "h11", "httptools", "jinja2", "jwt", "keyring", "markupsafe", "orjson",
     "pgparse", "prometheus_client", "pyarrow", "pydantic", "pydantic_core", "pydantic_monty", "pydantic_settings",
     "pytest", "re2", "rfc8785", "rich", "starlette", "structlog", "typer", "uvicorn", "uvloop", "watchfiles", "yaml"}
)  # fmt: skip


def list_uses(source: Path) -> set[str]:
    """List the uses of the network in all modules below a folder."""
    return {
        f"{path.relative_to(source).as_posix()} {use}"
        for path in sorted(source.rglob("*.py"))
        for use in _find_uses(path, path.relative_to(source).as_posix())
    }


def _find_uses(path: Path, module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _name_import(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from _name_import(node.module)
            yield from (each for alias in node.names for each in _name_import(f"{node.module}.{alias.name}", True))
        elif isinstance(node, ast.Call):
            yield from _name_call(node)
        elif isinstance(node, ast.Attribute) and module != _EGRESS_MODULE:
            yield from _name_egress(node)


def _name_import(module: str, is_member: bool = False) -> Iterator[str]:
    root = module.partition(".")[0]
    if module in _NETWORK_MODULES:
        yield module
    elif not is_member and root != "deputize" and root not in sys.stdlib_module_names and root not in LOCAL_PACKAGES:
        yield root


def _name_call(node: ast.Call) -> Iterator[str]:
    function = node.func
    name = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    if name == "Egress" or name in _NETWORK_CALLS:
        yield name
    if name == "import_module" and node.args and isinstance(node.args[0], ast.Constant):
        yield from _name_import(str(node.args[0].value))


def _name_egress(node: ast.Attribute) -> Iterator[str]:
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    if name.lower().endswith("egress") and node.attr in _EGRESS_METHODS:
        yield f"egress.{node.attr}"
