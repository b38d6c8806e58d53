"""The fuzzer of runs asks every route the document has about them, and hears when a stream is none."""

from contextlib import AbstractAsyncContextManager

import pytest

from deputize.doors.asgi import build
from deputize.lifecycle.gateway import Gateway
from proofs.kit.poison_runs import routes_of, wrong_with_stream


def _never() -> AbstractAsyncContextManager[Gateway]:
    raise RuntimeError("this composition is only looked at")


def test_every_route_about_runs_is_asked_with_what_it_takes() -> None:
    routes = {route.name: route for route in routes_of(build(_never).rest.openapi())}

    assert list(routes["POST /v1/calls/{call_id}/rollback"].fields) == ["checkpoint"]
    assert routes["GET /v1/calls/{call_id}/events"].parameters["header"] == ["last-event-id"]
    assert routes["GET /v1/tickets"].parameters["query"] == ["state", "before", "limit"]
    assert "POST /v1/webhooks/deadletters/{delivery_id}/retry" in routes
    assert list(routes["POST /v1/approvals/batch"].fields) == ["tickets", "decision", "reason", "vary"]
    assert routes["POST /v1/approvals/{ticket_id}/approve"].decides
    assert not routes["GET /v1/approvals/suggestions"].decides


@pytest.mark.parametrize(
    ("stream", "wrong"),
    [
        (b"", None),
        (b'retry: 1000\nid: 1.running.0\nevent: a\ndata: {"x": 1}\n\n: still here\n\n', None),
        (b"retry: 1000\n: still here\n\n", None),
        (b"data: {}\n\n", "not an event"),
        (b"event: a\ndata: {\n\n", "an event that is not JSON"),
        (b'event: error\ndata: {"error": {"slug": "internal"}}\n\n', "internal"),
        (b'event: error\ndata: {"error": {"slug": "revoked"}}\n\n', "a stream that broke off"),
        (b"<html>\n\n", "not an event"),
    ],
)
def test_a_stream_is_judged_event_by_event(stream: bytes, wrong: str | None) -> None:
    assert wrong_with_stream(stream) == wrong
