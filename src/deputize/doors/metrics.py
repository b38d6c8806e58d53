"""`/metrics` for Prometheus, on a listener of its own that stays private. No tenant is named on it.

A worker has no other listener, so it tells here how it is, too. Above: `server.py` starts the listener. Below:
`prove/metrics.py` owns the registry.
"""

from collections.abc import Callable

import orjson
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from deputize.core.errors import MethodNotAllowed, NoSuchRoute, Problem
from deputize.doors.wire import JSON, ASGIApp, Receive, Scope, Send, answer, answer_problem, trace_id_of
from deputize.lifecycle.gateway import Gateway

_HEALTH = ("/healthz", "/readyz")
_ALIVE = b'{"status":"ok"}'


def metrics_app(gateway: Callable[[], Gateway], *, health: bool = False) -> ASGIApp:
    """`gateway` raises a Problem while there is none. With `health`, /healthz and /readyz are served too."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            if path != "/metrics" and not (health and path in _HEALTH):
                raise NoSuchRoute("only /metrics is served here")
            if scope["method"] not in ("GET", "HEAD"):
                raise MethodNotAllowed(f"{path} is only read")
            if path == "/healthz":
                await answer(send, 200, [JSON], _ALIVE)
                return
            if path == "/readyz":
                status, told = _ready(gateway())
                await answer(send, status, [JSON], told)
                return
            text = generate_latest(gateway().metrics.registry)
        except Problem as problem:
            allow = ((b"allow", b"GET, HEAD"),) if isinstance(problem, MethodNotAllowed) else ()
            await answer_problem(send, problem, trace_id_of(scope), allow)
            return
        await answer(send, 200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], text)

    return app


def _ready(gateway: Gateway) -> tuple[int, bytes]:
    checks = [{"name": each.name, "ok": each.ok, "detail": each.detail} for each in gateway.health.checks()]
    ready = all(each["ok"] for each in checks)
    return 200 if ready else 503, orjson.dumps({"ready": ready, "checks": checks})
