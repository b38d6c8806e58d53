"""Every problem through every interface: the same facts in each wire form, and what can be provoked is."""

from typing import Any

import orjson
import pytest

from deputize.core.errors import Problem, list_problem_types
from deputize.core.outcome import Outcome, build_failure_envelope
from deputize.core.states import State
from deputize.interfaces.asgi_http import send_problem
from deputize.interfaces.jsonrpc import make_error_object
from deputize.interfaces.rest.calls.post_call import build_outcome_headers
from deputize.interfaces.rest.common import make_problem_response
from tests.integration.conftest import ADMIN, HttpGateway
from tests.support.cases import check_each

pytestmark = pytest.mark.requirement("CON-6")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
each_problem = check_each("kind", list_problem_types(), label=lambda kind: kind.spec.slug)


def _require_error_spec(problem: dict[str, Any], kind: type[Problem]) -> None:
    face, error = kind.spec, problem["error"]
    assert problem["type"] == f"urn:deputize:problem:{face.slug}"
    assert (problem["status"], problem["title"], problem["detail"]) == (face.http, face.title, "as told")
    assert (error["code"], error["number"], error["class"], error["slug"]) == (
        face.code, face.e_number, face.error_class, face.slug,
    )  # fmt: skip
    assert (error["retryable"], error["retry_after_ms"]) == (face.retryable, 1200)
    assert (error["message"], error["advice"]) == ("as told", face.advice)
    assert (error["details"], error["trace_id"]) == ({"a": 1}, TRACE)


@each_problem
async def test_every_problem_has_its_error_spec_on_every_interface(kind: type[Problem]) -> None:
    problem = kind("as told", details={"a": 1}, retry_after_ms=1200)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await send_problem(send, problem, TRACE)
    plain_headers = dict(sent[0]["headers"])
    assert sent[0]["status"] == kind.spec.http
    assert plain_headers[b"content-type"] == b"application/problem+json"
    assert plain_headers[b"retry-after"] == b"2"
    assert (b"www-authenticate" in plain_headers) == (kind.spec.http == 401)
    _require_error_spec(orjson.loads(sent[1]["body"]), kind)

    framed = make_problem_response(problem, TRACE)
    assert framed.status_code == kind.spec.http
    assert framed.headers["content-type"] == "application/problem+json"
    _require_error_spec(orjson.loads(bytes(framed.body)), kind)

    over_rpc = make_error_object(problem, TRACE)
    assert (over_rpc["code"], over_rpc["message"]) == (kind.spec.jsonrpc_code, "as told")
    _require_error_spec(over_rpc["data"], kind)


@each_problem
def test_every_problem_of_a_call_keeps_its_error_spec(kind: type[Problem]) -> None:
    problem = kind("as told", details={"a": 1}, retry_after_ms=1200)
    envelope = build_failure_envelope(problem, call_id="c", state=State.FAILED, trace_id=TRACE, extra_fields={})
    outcome = Outcome(call_id="c", state=State.FAILED, envelope=envelope, spec=kind.spec, retry_after_ms=1200)
    headers = dict(build_outcome_headers(outcome))
    assert outcome.http_status == kind.spec.http
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"retry-after"] == b"2"
    _require_error_spec(orjson.loads(envelope.body), kind)


@each_problem
async def test_a_tool_that_ends_in_it_says_so_over_rest_and_rpc(kind: type[Problem], gateway: HttpGateway) -> None:
    answer = await gateway.call("shop.fail", {"slug": kind.spec.slug})
    envelope = answer.json()
    assert answer.status_code == kind.spec.http
    assert envelope["error"]["number"] == kind.spec.e_number
    assert envelope["is_error"] is True
    assert ("retry-after" in answer.headers) == kind.spec.retryable
    over_rpc = await gateway.call_rpc("calls.create", {"tool": "shop.fail", "arguments": {"slug": kind.spec.slug}})
    assert over_rpc["error"]["code"] == kind.spec.jsonrpc_code
    assert over_rpc["error"]["data"]["error"]["number"] == kind.spec.e_number
    assert over_rpc["error"]["data"]["state"] == envelope["state"]


REQUESTS: list[tuple[str, int, dict[str, Any]]] = [
    ("token-missing", 401, {"headers": {}}),
    ("token-missing", 401, {"headers": {"authorization": "Basic abc"}}),
    ("token-malformed", 401, {"headers": {"authorization": "Bearer ${TOKEN}"}}),
    ("unsupported-media", 415, {"type": "text/plain"}),
    ("parse-failed", 400, {"content": b"{"}),
    ("malformed", 400, {"content": b"[]"}),
    ("malformed", 400, {"content": b'{"tool":"shop.get_user","nonsense":1}'}),
    ("malformed", 400, {"key": "a b"}),
    ("too-large", 413, {"content": b'{"tool":"' + b"x" * 1_048_576 + b'"}'}),
    ("tool-not-found", 404, {"content": b'{"tool":"shop.nobody"}'}),
    ("version-not-found", 404, {"content": b'{"tool":"shop.get_user","version":"9.9.9"}'}),
    ("malformed", 400, {"content": b'{"tool":"shop.get_user","version":"so-so"}'}),
    ("schema-violation", 400, {"content": b'{"tool":"shop.get_user","arguments":{"id":0}}'}),
    ("key-required", 400, {"content": b'{"tool":"shop.delete_user","arguments":{"id":1}}'}),
]


@pytest.mark.parametrize(("slug", "status", "sent"), REQUESTS)
async def test_a_bad_request_explains_what_is_wrong(
    slug: str, status: int, sent: dict[str, Any], gateway: HttpGateway
) -> None:
    headers = sent.get("headers", {"authorization": f"Bearer {gateway.token()}"})
    headers = {**headers, "content-type": sent.get("type", "application/json")}
    if "key" in sent:
        headers["idempotency-key"] = sent["key"]
    body = sent.get("content", b'{"tool":"shop.get_user","arguments":{"id":1}}')
    answer = await gateway.http.post("/v1/calls", content=body, headers=headers)
    assert (answer.json()["error"]["slug"], answer.status_code) == (slug, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["error"]["advice"]
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_body_that_grows_past_the_limit_is_refused_however_it_is_sent(gateway: HttpGateway) -> None:
    async def stream_chunks() -> Any:
        for _ in range(80):
            yield b"x" * 16_384

    headers = {"authorization": f"Bearer {gateway.token()}", "content-type": "application/json"}
    answer = await gateway.http.post("/v1/calls", content=stream_chunks(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (413, "too-large")


async def test_headers_that_decide_may_not_come_twice(gateway: HttpGateway) -> None:
    token = gateway.token()
    headers = [("authorization", f"Bearer {token}"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    answer = await gateway.http.post("/v1/calls", json={"tool": "shop.get_user"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")


async def test_what_is_not_served_is_a_problem_too(gateway: HttpGateway) -> None:
    nowhere = await gateway.http.get("/v2/nothing")
    assert (nowhere.status_code, nowhere.json()["error"]["slug"]) == (404, "no-such-route")
    wrong = await gateway.http.delete("/v1/calls")
    assert (wrong.status_code, wrong.json()["error"]["slug"]) == (405, "method-not-allowed")
    assert wrong.headers["allow"] == "GET, POST"
    rpc = await gateway.http.get("/rpc")
    assert (rpc.status_code, rpc.headers["allow"]) == (405, "POST")
    batch = await gateway.http.request("OPTIONS", "/v1/approvals/batch")
    assert (batch.status_code, batch.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/calls?limit=0",
        "/v1/calls?before=x",
        "/v1/tools?limt=5",
        "/v1/tools/search",
        "/v1/calls?limit=%00",
        "/v1/approvals/suggestions?since=0.5",
    ],
)
async def test_wrong_parameters_are_malformed(path: str, gateway: HttpGateway) -> None:
    answer = await gateway.get(path)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_administrators_hear_every_reason_and_others_hear_only_no(gateway: HttpGateway) -> None:
    stranger = await gateway.post("/v1/tools", {"name": "x"})
    assert (stranger.status_code, stranger.json()["error"]["slug"]) == (403, "scope-missing")
    refused = await gateway.post("/v1/tools", {"name": "x"}, token=gateway.token(scopes=[ADMIN]))
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "not-admitted")
    assert len(refused.json()["error"]["details"]["reasons"]) > 3
    for body, slug in (([], "malformed"), ({"state": "gone"}, "malformed"), ({"state": "draft", "x": 1}, "malformed")):
        answer = await gateway.post(
            "/v1/tools/shop.get_user/versions/1.2.0/state", body, token=gateway.token(scopes=[ADMIN])
        )
        assert answer.json()["error"]["slug"] == slug
