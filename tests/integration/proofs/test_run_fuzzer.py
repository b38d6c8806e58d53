"""The fuzzer of runs asks every route the document has about them, and hears when a stream is none."""

from contextlib import AbstractAsyncContextManager

import pytest

from deputize.interfaces.asgi import build_api
from deputize.operations.gateway import Gateway
from proofs.fuzz.run_fuzzer import find_stream_fault, list_routes

pytestmark = pytest.mark.nightly


def _never_open() -> AbstractAsyncContextManager[Gateway]:
    raise RuntimeError("this composition is only looked at")


def test_every_route_about_runs_is_asked_with_what_it_takes() -> None:
    routes = {route.name: route for route in list_routes(build_api(_never_open).rest.openapi())}

    assert list(routes["POST /v1/calls/{call_id}/rollback"].fields) == ["checkpoint"]
    assert routes["GET /v1/calls/{call_id}/events"].parameters["header"] == ["last-event-id"]
    assert routes["GET /v1/human-tasks"].parameters["query"] == ["state", "kind", "before", "limit"]
    assert "POST /v1/webhooks/deadletters/{delivery_id}/retry" in routes
    assert list(routes["POST /v1/approvals/batch"].fields) == ["approval_ids", "decision", "reason", "vary", "bindings"]
    assert routes["POST /v1/approvals/{approval_id}/approve"].is_for_approvers
    assert not routes["GET /v1/approvals/suggestions"].is_for_approvers


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
    assert find_stream_fault(stream) == wrong
