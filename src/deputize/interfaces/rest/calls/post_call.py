"""Serve `POST /v1/calls`, which gets nearly all requests, in plain ASGI without framework objects.

The envelope's bytes are sent as they are. `rest/openapi.py` describes this route.
"""

from deputize.core.errors import Problem
from deputize.core.outcome import Outcome
from deputize.interfaces.asgi_http import (
    JSON,
    ClientDisconnect,
    Header,
    Receive,
    Scope,
    Send,
    build_problem_headers,
    hide_internal_error,
    make_retry_after_header,
    parse_headers,
    read_body,
    read_trace_id,
    require_json,
    send_problem,
)
from deputize.interfaces.call_request import parse_call_request, parse_idempotency_key
from deputize.interfaces.json_body import read_json_off_loop
from deputize.operations.gateway import Gateway

_REPLAYED_HEADER: Header = (b"idempotency-replayed", b"true")
_JOINED_HEADER: Header = (b"deputize-joined", b"true")


async def post_call(gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
    """Run a call and send its outcome."""
    try:
        headers = parse_headers(scope)
        get = headers.get
        caller = await gateway.authenticate_for_call(get(b"authorization"))
        require_json(headers)
        server = gateway.settings.server
        fields = await read_json_off_loop(await read_body(receive, headers, server.max_body_bytes), server.max_depth)
        key, traceparent = get(b"idempotency-key"), get(b"traceparent")
        request = parse_call_request(
            fields,
            key=None if key is None else parse_idempotency_key(key),
            traceparent=None if traceparent is None else traceparent.decode("latin-1"),
        )
        outcome = await gateway.run_call(caller, request)
    except Problem as problem:
        await send_problem(send, problem, read_trace_id(scope), metadata=gateway.metadata_url)
        return
    except ClientDisconnect:
        return
    except Exception as error:  # noqa: BLE001 -- the outermost handler: logs an unexpected error and hides it
        trace_id = read_trace_id(scope)
        await send_problem(send, hide_internal_error(error, trace_id), trace_id)
        return
    response_headers = (
        build_outcome_headers(outcome) if outcome.spec is None else build_outcome_headers(outcome, gateway.metadata_url)
    )
    await send({"type": "http.response.start", "status": outcome.http_status, "headers": response_headers})
    await send({"type": "http.response.body", "body": outcome.body})


def build_outcome_headers(outcome: Outcome, metadata: str | None = None) -> list[Header]:
    """Build the headers of an outcome's response."""
    headers = [JSON] if outcome.spec is None else build_problem_headers(outcome.spec, outcome.retry_after_ms, metadata)
    if outcome.is_accepted and outcome.retry_after_ms is not None:
        headers.append(make_retry_after_header(outcome.retry_after_ms))
    headers.append((b"content-length", b"%d" % len(outcome.body)))
    headers.append((b"location", b"/v1/calls/" + outcome.call_id.encode()))
    if outcome.is_replay:
        headers.append(_REPLAYED_HEADER)
    if outcome.is_joined:
        headers.append(_JOINED_HEADER)
    if outcome.deprecation is not None:
        headers += outcome.deprecation.build_headers()
    return headers
