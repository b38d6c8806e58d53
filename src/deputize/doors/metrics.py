"""`/metrics` for Prometheus, on a listener of its own that stays private. No tenant is named on it.

Above: `server.py` starts the listener. Below: `prove/metrics.py` owns the registry.
"""

from collections.abc import Callable

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from deputize.core.errors import MethodNotAllowed, NoSuchRoute, Problem
from deputize.doors.wire import ASGIApp, Receive, Scope, Send, answer, answer_problem, trace_id_of
from deputize.lifecycle.gateway import Gateway


def metrics_app(gateway: Callable[[], Gateway]) -> ASGIApp:
    """`gateway` raises a Problem while there is none."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] != "/metrics":
                raise NoSuchRoute("only /metrics is served here")
            if scope["method"] not in ("GET", "HEAD"):
                raise MethodNotAllowed("/metrics is only read")
            text = generate_latest(gateway().metrics.registry)
        except Problem as problem:
            allow = ((b"allow", b"GET, HEAD"),) if isinstance(problem, MethodNotAllowed) else ()
            await answer_problem(send, problem, trace_id_of(scope), allow)
            return
        await answer(send, 200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], text)

    return app
