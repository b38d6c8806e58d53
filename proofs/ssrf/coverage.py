"""Which code that uses the network no place covers. Code that is left out is named here, with the reason."""

from collections.abc import Iterable
from pathlib import Path

from proofs.ssrf.inventory import list_uses

SOURCE = Path(__file__).resolve().parents[2] / "src" / "deputize"
_DATABASE = "connects to the database or the counters that only the settings name, in their own protocols"
# Packages that are used in many modules and connect only where the settings say.
LEFT_OUT_PACKAGES = {
    "alembic": _DATABASE,
    "asyncpg": _DATABASE,
    "dbos": _DATABASE,
    "google": "has the messages of Protocol Buffers, and no client",
    "redis": _DATABASE,
    "sqlalchemy": _DATABASE,
}
_OWN_MACHINE = "runs on the machine of the person who names the gateway, and connects to it and to its issuer"
_LISTENS = "resolves the address to listen on"
_SERVES = "serves calls, and opens no channel"
_OUTBOUND_CLIENT = "is the outbound client, which the places use"
_SUPERVISOR = "connects to a Unix socket in the folder of this host's supervisor, and to no address of a network"
_PROXY = "is the proxy of sandboxes, which the proof sandbox_egress tries"
_BROWSER = "is the proxy of browsers, which tests/integration/execute/test_page_proxy.py and test_browser.py try"
_COMPILED = "uses validators that catalog/schemas.py has compiled"
LEFT_OUT_CODE = {
    "catalog/exchange/agent_tool/object_kinds.py jsonschema_rs": "compiles schemas that are part of the product",
    "catalog/schema_errors.py jsonschema_rs": _COMPILED,
    "client/__init__.py httpx2": _OWN_MACHINE,
    "evidence/tracing.py opentelemetry": "makes spans; evidence/span_export.py sends them",
    "execute/browser/page_proxy.py Egress": _BROWSER,
    "execute/browser/page_proxy.py egress.exchange": _BROWSER,
    "execute/egress.py create_connection": _OUTBOUND_CLIENT,
    "execute/egress.py getaddrinfo": _OUTBOUND_CLIENT,
    "execute/egress.py httpcore2": _OUTBOUND_CLIENT,
    "execute/egress.py httpx2": _OUTBOUND_CLIENT,
    "execute/egress.py resolve_allowed_addresses": _OUTBOUND_CLIENT,
    "execute/egress_proxy.py open_connection": _PROXY,
    "execute/egress_proxy.py resolve_allowed_addresses": _PROXY,
    "interfaces/cli/client/log_client.py http.client": _OWN_MACHINE,
    "interfaces/cli/client/mcp_bridge.py httpx2": _OWN_MACHINE,
    "interfaces/cli/client/rest_client.py http.client": _OWN_MACHINE,
    "interfaces/cli/client/sign_in/issuer_client.py http.client": _OWN_MACHINE,
    "interfaces/cli/local/dev_environment.py getaddrinfo": _LISTENS,
    "execute/drivers/grpc.py grpc": "calls over channels that grpc_channels.py has opened",
    "interfaces/grpc/listener.py grpc": _SERVES,
    "interfaces/grpc/status.py grpc": _SERVES,
    "interfaces/server.py getaddrinfo": _LISTENS,
    "sandboxes/client.py sock_connect": _SUPERVISOR,
    "testing/gateway_calls.py http.client": _OWN_MACHINE,
}


def list_uncovered_code(covered: Iterable[str], source: Path = SOURCE) -> list[str]:
    """List uses of the network that no place covers, and names of code here that no longer exists."""
    declared = {*covered, *LEFT_OUT_CODE}
    uses = {each for each in list_uses(source) if each.rpartition(" ")[2] not in LEFT_OUT_PACKAGES}
    return sorted(uses ^ declared)
