"""Every problem through every door: the same facts in each wire form, and what can be provoked is."""

from typing import Any

import orjson
import pytest

from deputize.core.errors import Problem, every_problem
from deputize.core.events import State
from deputize.core.outcome import Outcome, failure_body
from deputize.doors.jsonrpc import error_object
from deputize.doors.rest.common import problem_reply
from deputize.doors.rest.hot import outcome_headers
from deputize.doors.wire import answer_problem
from tests.integration.conftest import ADMIN, Served

pytestmark = pytest.mark.requirement("CON-6")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
EVERY = [pytest.param(kind, id=kind.face.slug) for kind in every_problem()]


def _faithful(shown: dict[str, Any], kind: type[Problem]) -> None:
    face, error = kind.face, shown["error"]
    assert shown["type"] == f"urn:deputize:problem:{face.slug}"
    assert (shown["status"], shown["title"], shown["detail"]) == (face.http, face.title, "as told")
    assert (error["code"], error["number"], error["class"], error["slug"]) == (
        face.code, face.e_number, face.error_class, face.slug,
    )  # fmt: skip
    assert (error["retryable"], error["retry_after_ms"]) == (face.retryable, 1200)
    assert (error["message"], error["advice"]) == ("as told", face.advice)
    assert (error["details"], error["trace_id"]) == ({"a": 1}, TRACE)


@pytest.mark.parametrize("kind", EVERY)
async def test_every_problem_leaves_every_door_with_its_face(kind: type[Problem]) -> None:
    problem = kind("as told", details={"a": 1}, retry_after_ms=1200)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await answer_problem(send, problem, TRACE)
    plain_headers = dict(sent[0]["headers"])
    assert sent[0]["status"] == kind.face.http
    assert plain_headers[b"content-type"] == b"application/problem+json"
    assert plain_headers[b"retry-after"] == b"2"
    assert (b"www-authenticate" in plain_headers) == (kind.face.http == 401)
    _faithful(orjson.loads(sent[1]["body"]), kind)

    framed = problem_reply(problem, TRACE)
    assert framed.status_code == kind.face.http
    assert framed.headers["content-type"] == "application/problem+json"
    _faithful(orjson.loads(bytes(framed.body)), kind)

    over_rpc = error_object(problem, TRACE)
    assert (over_rpc["code"], over_rpc["message"]) == (kind.face.jsonrpc_code, "as told")
    _faithful(over_rpc["data"], kind)


@pytest.mark.parametrize("kind", EVERY)
def test_every_problem_a_call_ends_in_keeps_its_face(kind: type[Problem]) -> None:
    problem = kind("as told", details={"a": 1}, retry_after_ms=1200)
    body = failure_body(problem, call_id="c", state=State.FAILED, trace_id=TRACE, more={})
    outcome = Outcome(call_id="c", state=State.FAILED, body=body, face=kind.face, retry_after_ms=1200)
    headers = dict(outcome_headers(outcome))
    assert outcome.http_status == kind.face.http
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"retry-after"] == b"2"
    _faithful(orjson.loads(body), kind)


@pytest.mark.parametrize("kind", EVERY)
async def test_a_tool_that_ends_in_it_says_so_over_rest_and_rpc(kind: type[Problem], served: Served) -> None:
    answer = await served.call("shop.fail", {"slug": kind.face.slug})
    envelope = answer.json()
    assert answer.status_code == kind.face.http
    assert envelope["error"]["number"] == kind.face.e_number
    assert envelope["is_error"] is True
    assert ("retry-after" in answer.headers) == kind.face.retryable
    over_rpc = await served.rpc("calls.create", {"tool": "shop.fail", "arguments": {"slug": kind.face.slug}})
    assert over_rpc["error"]["code"] == kind.face.jsonrpc_code
    assert over_rpc["error"]["data"]["error"]["number"] == kind.face.e_number
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
async def test_a_bad_request_is_told_what_is_wrong(
    slug: str, status: int, sent: dict[str, Any], served: Served
) -> None:
    headers = sent.get("headers", {"authorization": f"Bearer {served.token()}"})
    headers = {**headers, "content-type": sent.get("type", "application/json")}
    if "key" in sent:
        headers["idempotency-key"] = sent["key"]
    body = sent.get("content", b'{"tool":"shop.get_user","arguments":{"id":1}}')
    answer = await served.http.post("/v1/calls", content=body, headers=headers)
    assert (answer.json()["error"]["slug"], answer.status_code) == (slug, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["error"]["advice"]
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_body_that_grows_past_the_limit_is_refused_however_it_is_sent(served: Served) -> None:
    async def pieces() -> Any:
        for _ in range(80):
            yield b"x" * 16_384

    headers = {"authorization": f"Bearer {served.token()}", "content-type": "application/json"}
    answer = await served.http.post("/v1/calls", content=pieces(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (413, "too-large")


async def test_headers_that_decide_may_not_come_twice(served: Served) -> None:
    token = served.token()
    headers = [("authorization", f"Bearer {token}"), ("idempotency-key", "a"), ("idempotency-key", "b")]
    answer = await served.http.post("/v1/calls", json={"tool": "shop.get_user"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")


async def test_what_is_not_served_is_a_problem_too(served: Served) -> None:
    nowhere = await served.http.get("/v2/nothing")
    assert (nowhere.status_code, nowhere.json()["error"]["slug"]) == (404, "no-such-route")
    wrong = await served.http.delete("/v1/calls")
    assert (wrong.status_code, wrong.json()["error"]["slug"]) == (405, "method-not-allowed")
    assert wrong.headers["allow"] == "GET, POST"
    rpc = await served.http.get("/rpc")
    assert (rpc.status_code, rpc.headers["allow"]) == (405, "POST")
    batch = await served.http.request("OPTIONS", "/v1/approvals/batch")
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
async def test_wrong_parameters_are_malformed(path: str, served: Served) -> None:
    answer = await served.get(path)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_administrators_hear_every_reason_and_others_hear_only_no(served: Served) -> None:
    stranger = await served.post("/v1/tools", {"name": "x"})
    assert (stranger.status_code, stranger.json()["error"]["slug"]) == (403, "scope-missing")
    refused = await served.post("/v1/tools", {"name": "x"}, token=served.token(scopes=[ADMIN]))
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "not-admitted")
    assert len(refused.json()["error"]["details"]["reasons"]) > 3
    for body, slug in (([], "malformed"), ({"state": "gone"}, "malformed"), ({"state": "draft", "x": 1}, "malformed")):
        answer = await served.post(
            "/v1/tools/shop.get_user/versions/1.2.0/state", body, token=served.token(scopes=[ADMIN])
        )
        assert answer.json()["error"]["slug"] == slug
