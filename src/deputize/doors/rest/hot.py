"""`POST /v1/calls`, where nearly all requests go: plain ASGI, no framework object on the way.

It reads, asks the lifecycle, and writes the outcome's bytes as they are. Its part of the API document is in
`document.py`. Above: `doors/asgi.py` sends it its requests. Below: `lifecycle/gateway.py`.
"""

from deputize.core.errors import Problem
from deputize.core.outcome import Outcome
from deputize.doors.asking import call_request, idempotency_key
from deputize.doors.json_in import read_json
from deputize.doors.wire import (
    JSON,
    ClientGone,
    Header,
    Receive,
    Scope,
    Send,
    answer_problem,
    headers_of,
    hide,
    problem_headers,
    read_body,
    require_json,
    retry_after,
    trace_id_of,
)
from deputize.lifecycle.gateway import Gateway, bearer

_REPLAYED: Header = (b"idempotency-replayed", b"true")
_JOINED: Header = (b"deputize-joined", b"true")


async def post_call(gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        headers = headers_of(scope)
        get = headers.get
        token = bearer(get(b"authorization"))
        caller = gateway.tokens.cached(token) or await gateway.tokens.verify(token)
        require_json(headers)
        server = gateway.settings.server
        fields = read_json(await read_body(receive, headers, server.max_body_bytes), server.max_depth)
        key, parent = get(b"idempotency-key"), get(b"traceparent")
        request = call_request(
            fields,
            key=None if key is None else idempotency_key(key),
            traceparent=None if parent is None else parent.decode("latin-1"),
        )
        outcome = await gateway.lifecycle.run(caller, request)
    except Problem as problem:
        await answer_problem(send, problem, trace_id_of(scope), metadata=gateway.metadata_url)
        return
    except ClientGone:
        return
    except Exception as error:  # noqa: BLE001 -- the door's edge: a fault of ours is logged here and shown to nobody
        trace_id = trace_id_of(scope)
        await answer_problem(send, hide(error, trace_id), trace_id)
        return
    headers_out = outcome_headers(outcome) if outcome.face is None else outcome_headers(outcome, gateway.metadata_url)
    await send({"type": "http.response.start", "status": outcome.http_status, "headers": headers_out})
    await send({"type": "http.response.body", "body": outcome.body})


def outcome_headers(outcome: Outcome, metadata: str | None = None) -> list[Header]:
    """What HTTP says about an outcome beside its body."""
    headers = [JSON] if outcome.face is None else problem_headers(outcome.face, outcome.retry_after_ms, metadata)
    if outcome.accepted and outcome.retry_after_ms is not None:
        headers.append(retry_after(outcome.retry_after_ms))
    headers.append((b"content-length", b"%d" % len(outcome.body)))
    headers.append((b"location", b"/v1/calls/" + outcome.call_id.encode()))
    if outcome.replayed:
        headers.append(_REPLAYED)
    if outcome.joined:
        headers.append(_JOINED)
    return headers
