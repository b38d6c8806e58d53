"""A fuzzer of our own: requests that reach real tools over JSON-RPC and REST, with values no proper client sends.

Its methods and fields are those of the interfaces: one that no one here knows how to ask breaks the proof off.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
from hypothesis import strategies as st

from deputize.core.mcp.elicitation import ClientCapability
from deputize.interfaces.call_request import FIELDS
from deputize.interfaces.jsonrpc import METHODS
from proofs.fuzz.runner import Case, DocumentSchemas, FuzzResult, build_schema, run_cases
from proofs.fuzz.values import (
    HOSTILE_TEXTS,
    ONE_IN_TEN,
    build_header_values,
    build_numbers,
    build_texts,
    build_values,
    mix_mostly,
)
from proofs.kit.http_client import HttpConnection, HttpResponse

_OUTCOMES = ("EnvelopeModel", "AcceptedCallModel")
_RESULT_OF = {
    "calls.create": build_schema(*_OUTCOMES),
    "calls.get": build_schema("EnvelopeModel", "ProblemModel", "OpenCallModel", "CallModel"),
    "calls.cancel": build_schema("CancellationResult"),
    "calls.retry": build_schema(*_OUTCOMES),
    "tools.list": build_schema("ToolPage"),
    "tools.search": build_schema("SearchResultModel"),
    "tools.get": build_schema("ToolDetailModel"),
    "tools.negotiate": build_schema("NegotiationResult"),
    "surface.get": build_schema("SurfaceModel"),
}
_OF_STATUS = {200: build_schema("EnvelopeModel"), 202: build_schema("AcceptedCallModel")}
_TOOLS = ("fuzz.echo", "fuzz.note", "fuzz__echo", "fuzz.plead", "fuzz.nothing")


async def fuzz_rpc(url: str, token: str, *, cases: int, seed: int, calls: Sequence[str] = ()) -> FuzzResult:
    """So many cases, the same ones for the same seed but for `calls`, the ids of calls that are really there."""
    http = HttpConnection.for_url(url, token=token)
    checker = RpcAnswerChecker((await http.get("/openapi.json")).json())
    result = await run_cases(
        http, _build_plain_cases(), _build_cases(tuple(calls)), checker.find_fault, count=cases, number=seed
    )
    http.close()
    return result


class RpcAnswerChecker:
    """Holds answers against the document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = DocumentSchemas(document)
        self._statuses = {
            path: frozenset(int(status) for status in document["paths"][path]["post"]["responses"])
            for path in ("/rpc", "/v1/calls")
        }

    def find_fault(self, case: Case, answer: HttpResponse) -> str | None:
        if answer.status >= 500:
            return "server error"
        if answer.status not in self._statuses[case.path]:
            return f"undocumented status {answer.status}"
        if answer.status == 204:
            return None if not answer.body else "a body where none belongs"
        try:
            payload = answer.json()
        except orjson.JSONDecodeError:
            return "an answer that is not JSON"
        if case.path == "/v1/calls":
            return self._schemas.find_mismatch(_OF_STATUS.get(answer.status, build_schema("ProblemModel")), payload)
        return self._find_reply_faults(case, payload)

    def _find_reply_faults(self, case: Case, payload: Any) -> str | None:
        requests = case.request
        if not isinstance(payload, list):
            return self._find_reply_fault(payload, requests if isinstance(requests, dict) else None)
        if not isinstance(requests, list):
            return "a batch in answer to none"
        # Notifications are not answered; the others are, in their order.
        expected_replies = [each for each in requests if not _is_notification(each)]
        if len(expected_replies) != len(payload):
            return "not one reply per request"
        wrong = (self._find_reply_fault(*pair) for pair in zip(payload, expected_replies, strict=True))
        return next((each for each in wrong if each is not None), None)

    def _find_reply_fault(self, reply: Any, request: Any) -> str | None:
        if not isinstance(reply, dict) or reply.get("jsonrpc") != "2.0" or "id" not in reply:
            return "not a JSON-RPC reply"
        if ("result" in reply) == ("error" in reply):
            return "not exactly one of result and error"
        error = reply.get("error")
        if error is not None:
            if not isinstance(error.get("code"), int) or not isinstance(error.get("message"), str):
                return "an error without code or message"
            return self._schemas.find_mismatch(build_schema("ProblemModel"), error["data"])
        if not isinstance(request, dict) or reply["id"] != request["id"]:
            return "a result for another request"
        return self._schemas.find_mismatch(_RESULT_OF[request["method"]], reply["result"])


def _is_notification(request: Any) -> bool:
    is_well_formed = (
        isinstance(request, dict)
        and request.get("jsonrpc") == "2.0"
        and isinstance(request.get("method"), str)
        and request.keys() <= {"jsonrpc", "id", "method", "params"}
    )
    return is_well_formed and "id" not in request


@cache
def _build_arguments() -> st.SearchStrategy[Any]:
    plain = st.fixed_dictionaries(
        {
            "text": st.sampled_from(HOSTILE_TEXTS)
            | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
        },
        optional={"number": st.integers(-1000, 1000)},
    )
    poison = st.fixed_dictionaries(
        {"text": st.one_of(build_texts(), build_values())},
        optional={
            "number": st.one_of(build_numbers(), build_values()),
            "whole": build_numbers(),
            "many": st.lists(build_texts(), max_size=5),
        },
    )
    return st.one_of(plain, poison, poison, build_values())


@cache
def _build_calls() -> st.SearchStrategy[Any]:
    nobody = st.sampled_from(["http://127.0.0.1:9/", "https://nobody.invalid/"])
    callback = st.fixed_dictionaries(
        {"url": st.one_of(nobody, build_texts())}, optional={"secret": build_texts(), "include_result": st.booleans()}
    )
    answers: st.SearchStrategy[Any] = st.fixed_dictionaries(
        {"round_token": build_texts(), "responses": st.one_of(st.just({}), build_values())}
    )
    fields: dict[str, st.SearchStrategy[Any]] = {
        "tool": st.one_of(st.sampled_from(_TOOLS), build_texts()),
        "arguments": _build_arguments(),
        "version": st.one_of(st.sampled_from(["latest", "1.0.0", "^1", "~1.0", "1.x"]), build_texts(), build_values()),
        "session": st.one_of(st.just("s"), build_texts(), build_values()),
        "step": build_values(),
        "deadline_ms": st.one_of(st.integers(1, 5000), build_values()),
        "dry_run": build_values(),
        "mode": st.one_of(st.sampled_from(["async", "sync"]), st.just("async"), build_values()),
        "priority": st.one_of(st.integers(0, 11), build_values()),
        "continue": st.one_of(st.booleans(), build_values()),
        "did_not_happen": st.one_of(st.booleans(), build_values()),
        **{
            name: st.one_of(st.just("01990000-0000-7000-8000-000000000000"), build_texts(), build_values())
            for name in ("native_call_id", "parent_call_id", "flow_id")
        },
        "callback": st.one_of(callback, build_values()),
        "client_capabilities": st.one_of(st.lists(st.sampled_from(list(ClientCapability)), max_size=4), build_values()),
        "input_responses": mix_mostly(st.none(), st.one_of(answers, build_values())),
    }
    must = {name: fields[name] for name in ("tool", "arguments")}
    key = st.one_of(st.sampled_from(["k1", "k2", "k3"]), build_texts(), build_values())
    more = {name: fields[name] for name in FIELDS if name not in must}
    return st.fixed_dictionaries(must, optional={**more, "idempotency_key": key})


@cache
def _build_params(method: str, calls: tuple[str, ...]) -> st.SearchStrategy[Any]:
    known_ids = [st.sampled_from(calls), st.sampled_from([each.upper() for each in calls])] if calls else []
    call = st.fixed_dictionaries({"call_id": st.one_of(*known_ids, st.uuids().map(str), build_texts())})
    page = st.fixed_dictionaries({}, optional={"after": build_texts(), "limit": build_numbers()})
    by_method = {
        "calls.create": _build_calls(),
        "calls.get": call,
        "calls.cancel": call,
        "calls.retry": call,
        "surface.get": page,
        "tools.list": page,
        "tools.search": st.fixed_dictionaries({"q": build_texts()}, optional={"limit": st.integers(-1, 60)}),
        "tools.get": st.fixed_dictionaries(
            {"name": st.one_of(st.sampled_from(_TOOLS), st.sampled_from(_TOOLS), build_texts())},
            optional={"version": st.one_of(st.just("1.0.0"), build_texts())},
        ),
        "tools.negotiate": st.fixed_dictionaries(
            {"name": st.one_of(st.sampled_from(_TOOLS), build_texts())},
            optional={
                "version": st.one_of(st.sampled_from(["^1", "1.x"]), build_texts(), build_values()),
                "input": st.one_of(st.just({"fields": ["/text"]}), st.just({"schema": {}}), build_values()),
                "output": st.one_of(st.just({"fields": ["/text"]}), build_values()),
            },
        ),
    }
    return st.one_of(by_method[method], by_method[method], build_values())


def _build_plain_cases() -> list[Case]:
    """One proper request per method: what every run sends, whatever Hypothesis makes of its seed on this machine."""
    params = {
        "calls.create": {"tool": "fuzz.echo", "arguments": {"text": "plain"}},
        "tools.list": {},
        "tools.search": {"q": "echo"},
        "tools.get": {"name": "fuzz.echo"},
        "tools.negotiate": {"name": "fuzz.echo", "input": {"fields": ["/text"]}},
        "surface.get": {},
    }
    requests = [{"jsonrpc": "2.0", "id": 1, "method": method, "params": each} for method, each in params.items()]
    return [Case(path="/rpc", body=orjson.dumps(each), headers={}, request=each) for each in requests]


_ABSENT = object()
# Calls come in twice as often as anything else is asked.
_METHOD_NAMES = st.sampled_from(["calls.create", *METHODS])
_IDS = st.one_of(st.integers(0, 99), st.integers(0, 99), st.text("abc", max_size=5), build_values(), st.just(_ABSENT))


@st.composite
def _build_requests(draw: st.DrawFn, calls: tuple[str, ...]) -> dict[str, Any]:
    method = draw(_METHOD_NAMES)
    params = draw(_build_params(method, calls))
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": draw(build_texts()) if draw(ONE_IN_TEN) else method}
    request["params"] = params
    identity = draw(_IDS)
    if identity is not _ABSENT:
        request["id"] = identity
    if draw(ONE_IN_TEN):
        request[draw(build_texts())] = draw(build_values())
    return request


@cache
def _build_broken_bytes() -> st.SearchStrategy[bytes]:
    """Bodies that are not JSON, or JSON no one should send."""
    deep = st.builds(
        lambda depth, pair: pair[0] * depth + pair[1] * depth,
        st.integers(1, 100_000),
        st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")]),
    )
    twice = st.just(b'{"tool":"fuzz.echo","tool":"fuzz.note","arguments":{"text":"a"}}')
    broken_text = st.binary(min_size=1, max_size=8).map(
        lambda raw: (
            b'{"jsonrpc":"2.0","id":1,"method":"calls.create","params":{"tool":"fuzz.echo","arguments":{"text":"'
            + raw
            + b'"}}}'
        )
    )
    too_large = st.integers(1_048_000, 1_200_000).map(lambda size: b'{"tool":"' + b"a" * size + b'"}')
    return st.one_of(st.binary(max_size=200), deep, twice, broken_text, broken_text, too_large)


@cache
def _build_headers() -> st.SearchStrategy[dict[str, str]]:
    visible = build_header_values()
    trace = st.sampled_from(["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0-0-0", "ff" * 40])
    media = st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain", ""])
    rare = st.fixed_dictionaries(
        {},
        optional={
            "idempotency-key": st.one_of(st.sampled_from(["k1", "k2"]), visible),
            "traceparent": st.one_of(trace, visible),
            "content-type": st.one_of(media, visible),
        },
    )
    return rare


_PATHS = st.sampled_from(["/rpc", "/rpc", "/v1/calls"])
_EITHER = st.booleans()


@cache
def _build_batches(calls: tuple[str, ...]) -> st.SearchStrategy[Any]:
    return st.one_of(_build_requests(calls), _build_requests(calls), st.lists(_build_requests(calls), max_size=4))


@st.composite
def _build_cases(draw: st.DrawFn, calls: tuple[str, ...]) -> Case:
    path = draw(_PATHS)
    headers = draw(_build_headers()) if draw(ONE_IN_TEN) else {}
    if draw(ONE_IN_TEN):
        body = draw(_build_broken_bytes())
        return Case(path=path, body=body, headers=headers, request=_parse_json(body))
    if path == "/v1/calls":
        value = draw(build_values()) if draw(ONE_IN_TEN) else draw(_build_calls())
    else:
        value = draw(build_values()) if draw(ONE_IN_TEN) else draw(_build_batches(calls))
    # Python writes NaN and lone surrogates as they are, which is what is wanted here.
    body = json.dumps(value, ensure_ascii=draw(_EITHER)).encode("utf-8", "surrogatepass")
    return Case(path=path, body=body, headers=headers, request=value)


def _parse_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
