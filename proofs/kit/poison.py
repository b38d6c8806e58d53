"""A fuzzer of our own: requests that reach real tools over JSON-RPC and REST, with values no proper client sends.

Its methods and fields are those of the doors: one that nobody here knows how to ask breaks the proof off. Above:
`proofs.fuzz`. Below: `fuzzing`, which sends the cases, and `poison_values`.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
from hypothesis import strategies as st

from deputize.core.questions import Ability
from deputize.doors.asking import FIELDS
from deputize.doors.jsonrpc import METHODS
from proofs.kit.fuzzing import Case, Documented, Fuzzed, model, send_all
from proofs.kit.poison_values import HOSTILE, ONE_IN_TEN, header_values, mostly, numbers, texts, values
from proofs.kit.wire import Answer, Line

_OUTCOMES = ("Envelope", "Accepted")
_RESULT_OF = {
    "calls.create": model(*_OUTCOMES),
    "calls.get": model("Envelope", "ProblemShown", "CallOpen", "CallShown"),
    "calls.cancel": model("Canceling"),
    "calls.retry": model(*_OUTCOMES),
    "tools.list": model("ToolPage"),
    "tools.search": model("SearchFound"),
    "tools.get": model("ToolDetail"),
    "surface.get": model("SurfaceShown"),
}
_OF_STATUS = {200: model("Envelope"), 202: model("Accepted")}
_TOOLS = ("fuzz.echo", "fuzz.note", "fuzz__echo", "fuzz.plead", "fuzz.nothing")


async def fuzz(url: str, token: str, *, cases: int, seed: int, calls: Sequence[str] = ()) -> Fuzzed:
    """So many cases, the same ones for the same seed but for `calls`, the ids of calls that are really there."""
    line = Line.to(url, token=token)
    judge = _Judge((await line.get("/openapi.json")).json())
    found = await send_all(line, _plain(), _cases(tuple(calls)), judge.wrong_with, count=cases, number=seed)
    line.close()
    return found


class _Judge:
    """Holds answers against the document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._documented = Documented(document)
        self._statuses = {
            path: frozenset(int(status) for status in document["paths"][path]["post"]["responses"])
            for path in ("/rpc", "/v1/calls")
        }

    def wrong_with(self, case: Case, answer: Answer) -> str | None:
        if answer.status >= 500:
            return "server error"
        if answer.status not in self._statuses[case.path]:
            return f"undocumented status {answer.status}"
        if answer.status == 204:
            return None if not answer.body else "a body where none belongs"
        try:
            told = answer.json()
        except orjson.JSONDecodeError:
            return "an answer that is not JSON"
        if case.path == "/v1/calls":
            return self._documented.fits(_OF_STATUS.get(answer.status, model("ProblemShown")), told)
        return self._wrong_replies(case, told)

    def _wrong_replies(self, case: Case, told: Any) -> str | None:
        asked = case.request
        if not isinstance(told, list):
            return self._wrong_reply(told, asked if isinstance(asked, dict) else None)
        if not isinstance(asked, list):
            return "a batch in answer to none"
        # Notifications are not answered; the others are, in their order.
        expected = [each for each in asked if not _is_notification(each)]
        if len(expected) != len(told):
            return "not one reply per request"
        wrong = (self._wrong_reply(*pair) for pair in zip(told, expected, strict=True))
        return next((each for each in wrong if each is not None), None)

    def _wrong_reply(self, reply: Any, request: Any) -> str | None:
        if not isinstance(reply, dict) or reply.get("jsonrpc") != "2.0" or "id" not in reply:
            return "not a JSON-RPC reply"
        if ("result" in reply) == ("error" in reply):
            return "not exactly one of result and error"
        error = reply.get("error")
        if error is not None:
            if not isinstance(error.get("code"), int) or not isinstance(error.get("message"), str):
                return "an error without code or message"
            return self._documented.fits(model("ProblemShown"), error["data"])
        if not isinstance(request, dict) or reply["id"] != request["id"]:
            return "a result for another request"
        return self._documented.fits(_RESULT_OF[request["method"]], reply["result"])


def _is_notification(request: Any) -> bool:
    well_formed = (
        isinstance(request, dict)
        and request.get("jsonrpc") == "2.0"
        and isinstance(request.get("method"), str)
        and request.keys() <= {"jsonrpc", "id", "method", "params"}
    )
    return well_formed and "id" not in request


@cache
def _arguments() -> st.SearchStrategy[Any]:
    plain = st.fixed_dictionaries(
        {
            "text": st.sampled_from(HOSTILE)
            | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
        },
        optional={"number": st.integers(-1000, 1000)},
    )
    poisoned = st.fixed_dictionaries(
        {"text": st.one_of(texts(), values())},
        optional={
            "number": st.one_of(numbers(), values()),
            "whole": numbers(),
            "many": st.lists(texts(), max_size=5),
        },
    )
    return st.one_of(plain, poisoned, poisoned, values())


@cache
def _calls() -> st.SearchStrategy[Any]:
    nobody = st.sampled_from(["http://127.0.0.1:9/", "https://nobody.invalid/"])
    callback = st.fixed_dictionaries(
        {"url": st.one_of(nobody, texts())}, optional={"secret": texts(), "include_result": st.booleans()}
    )
    answers: st.SearchStrategy[Any] = st.fixed_dictionaries(
        {"round": texts(), "responses": st.one_of(st.just({}), values())}
    )
    fields: dict[str, st.SearchStrategy[Any]] = {
        "tool": st.one_of(st.sampled_from(_TOOLS), texts()),
        "arguments": _arguments(),
        "version": st.one_of(st.sampled_from(["latest", "1.0.0", "^1", "~1.0", "1.x"]), texts(), values()),
        "session": st.one_of(st.just("s"), texts(), values()),
        "step": values(),
        "deadline_ms": st.one_of(st.integers(1, 5000), values()),
        "dry_run": values(),
        "mode": st.one_of(st.sampled_from(["async", "sync"]), st.just("async"), values()),
        "priority": st.one_of(st.integers(0, 11), values()),
        "continue": st.one_of(st.booleans(), values()),
        "callback": st.one_of(callback, values()),
        "can_answer": st.one_of(st.lists(st.sampled_from(list(Ability)), max_size=4), values()),
        "answers": mostly(st.none(), st.one_of(answers, values())),
    }
    must = {name: fields[name] for name in ("tool", "arguments")}
    key = st.one_of(st.sampled_from(["k1", "k2", "k3"]), texts(), values())
    more = {name: fields[name] for name in FIELDS if name not in must}
    return st.fixed_dictionaries(must, optional={**more, "idempotency_key": key})


@cache
def _params(method: str, calls: tuple[str, ...]) -> st.SearchStrategy[Any]:
    there = [st.sampled_from(calls), st.sampled_from([each.upper() for each in calls])] if calls else []
    call = st.fixed_dictionaries({"call_id": st.one_of(*there, st.uuids().map(str), texts())})
    page = st.fixed_dictionaries({}, optional={"after": texts(), "limit": numbers()})
    shaped = {
        "calls.create": _calls(),
        "calls.get": call,
        "calls.cancel": call,
        "calls.retry": call,
        "surface.get": page,
        "tools.list": page,
        "tools.search": st.fixed_dictionaries({"q": texts()}, optional={"limit": st.integers(-1, 60)}),
        "tools.get": st.fixed_dictionaries(
            {"name": st.one_of(st.sampled_from(_TOOLS), st.sampled_from(_TOOLS), texts())},
            optional={"version": st.one_of(st.just("1.0.0"), texts())},
        ),
    }
    return st.one_of(shaped[method], shaped[method], values())


def _plain() -> list[Case]:
    """One proper request per method: what every run sends, whatever Hypothesis makes of its seed on this machine."""
    params = {
        "calls.create": {"tool": "fuzz.echo", "arguments": {"text": "plain"}},
        "tools.list": {},
        "tools.search": {"q": "echo"},
        "tools.get": {"name": "fuzz.echo"},
        "surface.get": {},
    }
    requests = [{"jsonrpc": "2.0", "id": 1, "method": method, "params": each} for method, each in params.items()]
    return [Case(path="/rpc", body=orjson.dumps(each), headers={}, request=each) for each in requests]


_ABSENT = object()
# Calls come in twice as often as anything else is asked.
_KNOWN = st.sampled_from(["calls.create", *METHODS])
_IDS = st.one_of(st.integers(0, 99), st.integers(0, 99), st.text("abc", max_size=5), values(), st.just(_ABSENT))


@st.composite
def _requests(draw: st.DrawFn, calls: tuple[str, ...]) -> dict[str, Any]:
    method = draw(_KNOWN)
    params = draw(_params(method, calls))
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": draw(texts()) if draw(ONE_IN_TEN) else method}
    request["params"] = params
    identity = draw(_IDS)
    if identity is not _ABSENT:
        request["id"] = identity
    if draw(ONE_IN_TEN):
        request[draw(texts())] = draw(values())
    return request


@cache
def _broken_bytes() -> st.SearchStrategy[bytes]:
    """Bodies that are not JSON, or JSON nobody should send."""
    deep = st.builds(
        lambda depth, pair: pair[0] * depth + pair[1] * depth,
        st.integers(1, 100_000),
        st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b"[", b"")]),
    )
    twice = st.just(b'{"tool":"fuzz.echo","tool":"fuzz.note","arguments":{"text":"a"}}')
    spoilt = st.binary(min_size=1, max_size=8).map(
        lambda raw: (
            b'{"jsonrpc":"2.0","id":1,"method":"calls.create","params":{"tool":"fuzz.echo","arguments":{"text":"'
            + raw
            + b'"}}}'
        )
    )
    too_large = st.integers(1_048_000, 1_200_000).map(lambda size: b'{"tool":"' + b"a" * size + b'"}')
    return st.one_of(st.binary(max_size=200), deep, twice, spoilt, spoilt, too_large)


@cache
def _headers() -> st.SearchStrategy[dict[str, str]]:
    visible = header_values()
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
def _batches(calls: tuple[str, ...]) -> st.SearchStrategy[Any]:
    return st.one_of(_requests(calls), _requests(calls), st.lists(_requests(calls), max_size=4))


@st.composite
def _cases(draw: st.DrawFn, calls: tuple[str, ...]) -> Case:
    path = draw(_PATHS)
    headers = draw(_headers()) if draw(ONE_IN_TEN) else {}
    if draw(ONE_IN_TEN):
        body = draw(_broken_bytes())
        return Case(path=path, body=body, headers=headers, request=_read(body))
    if path == "/v1/calls":
        value = draw(values()) if draw(ONE_IN_TEN) else draw(_calls())
    else:
        value = draw(values()) if draw(ONE_IN_TEN) else draw(_batches(calls))
    # Python writes NaN and lone surrogates as they are, which is what is wanted here.
    body = json.dumps(value, ensure_ascii=draw(_EITHER)).encode("utf-8", "surrogatepass")
    return Case(path=path, body=body, headers=headers, request=value)


def _read(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
