"""Serve `/metrics` and health on a private listener of its own. No metric names a tenant.

A worker has no other listener, and a gateway's health can be read here while its API is flooded with connections.
"""

from collections.abc import Callable, Iterable

import orjson
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from deputize.core.errors import MethodNotAllowed, NoSuchRoute, Problem
from deputize.interfaces.asgi_http import (
    JSON,
    ASGIApp,
    Receive,
    Scope,
    Send,
    read_trace_id,
    send_problem,
    send_response,
)
from deputize.operations.gateway import Gateway, HealthCheck

_HEALTH_PATHS = ("/healthz", "/readyz")
_ALIVE_BODY = b'{"status":"ok"}'


def build_metrics_app(get_gateway: Callable[[], Gateway]) -> ASGIApp:
    """Build the application. `get_gateway` raises a Problem while none is open."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            if path != "/metrics" and path not in _HEALTH_PATHS:
                raise NoSuchRoute("this listener serves only /metrics, /healthz and /readyz")
            if scope["method"] not in ("GET", "HEAD"):
                raise MethodNotAllowed(f"{path} can only be read: use GET")
            if path == "/healthz":
                await send_response(send, 200, [JSON], _ALIVE_BODY)
                return
            if path == "/readyz":
                status, body = _check_readiness(get_gateway())
                await send_response(send, status, [JSON], body)
                return
            text = generate_latest(get_gateway().metrics_registry)
        except Problem as problem:
            allow = ((b"allow", b"GET, HEAD"),) if isinstance(problem, MethodNotAllowed) else ()
            await send_problem(send, problem, read_trace_id(scope), allow)
            return
        await send_response(send, 200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], text)

    return app


def _check_readiness(gateway: Gateway) -> tuple[int, bytes]:
    checks = gateway.health.run_checks()
    is_ready = all(each.ok or not each.is_required for each in checks)
    return 200 if is_ready else 503, orjson.dumps({"ready": is_ready, "checks": describe_checks(checks)})


def describe_checks(checks: Iterable[HealthCheck]) -> list[dict[str, object]]:
    """Describe checks as `/readyz` shows them, on this listener and in the API."""
    return [
        {"name": each.name, "ok": each.ok, "optional": not each.is_required, "detail": each.detail} for each in checks
    ]
