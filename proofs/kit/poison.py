"""A fuzzer of our own: requests that reach real tools over JSON-RPC and REST, with values no proper client sends.

Hypothesis makes the cases and, in a thread, sends them one by one over lines of the proof's own loop. Every answer is
held against the API document. Above: `proofs.fuzz`. Below: `wire`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jsonschema_rs
import orjson
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from proofs.kit.wire import Answer, Line

_SECONDS = 20.0
_RESULT_OF = {
    "calls.create": "Envelope",
    "tools.list": "ToolPage",
    "tools.search": "SearchFound",
    "tools.get": "ToolDetail",
}
_METHODS = ("calls.create", "calls.create", "calls.get", "calls.cancel", "tools.list", "tools.search", "tools.get")
_TOOLS = ("fuzz.echo", "fuzz.note", "fuzz__echo", "fuzz.nothing")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One request as bytes, and what it asks for if it is well formed enough to say."""

    path: str
    body: bytes
    headers: dict[str, str]
    request: Any = None


@dataclass(kw_only=True, slots=True)
class Fuzzed:
    cases: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)

    def report(self, what: str, case: Case, answer: Answer | None) -> None:
        self.wrong[what] += 1
        if self.wrong[what] <= 3:
            said = f"{answer.status} {answer.body[:400]!r}" if answer else "no answer"
            self.samples.append(f"{what}: {case.path} {case.headers} {case.body[:300]!r} -> {said}")


async def fuzz(url: str, token: str, *, cases: int, seed: int) -> Fuzzed:
    """So many cases, the same ones for the same seed."""
    line = Line.to(url, token=token)
    judge = _Judge((await line.get("/openapi.json")).json())
    found = Fuzzed()
    loop = asyncio.get_running_loop()

    def send(case: Case) -> Answer | None:
        # Twice: a server may close a line on which nothing was said for a while, and Hypothesis may think for long.
        for _ in range(2):
            sending = line.send("POST", case.path, headers=case.headers, body=case.body)
            try:
                return asyncio.run_coroutine_threadsafe(asyncio.wait_for(sending, _SECONDS), loop).result()
            except (OSError, EOFError):
                continue
            except TimeoutError:
                return None
        return None

    await asyncio.to_thread(_run, cases, seed, send, judge, found)
    line.close()
    return found


def _run(count: int, number: int, send: Callable[[Case], Answer | None], judge: "_Judge", found: Fuzzed) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_cases())
    def one(case: Case) -> None:
        look(case)

    def look(case: Case) -> None:
        answer = send(case)
        found.cases += 1
        what = "no answer" if answer is None else judge.wrong_with(case, answer)
        if what is not None:
            found.report(what, case, answer)

    for case in _plain():
        look(case)
    one()


class _Judge:
    """Holds answers against the document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = document["components"]
        self._statuses = {
            path: frozenset(int(status) for status in document["paths"][path]["post"]["responses"])
            for path in ("/rpc", "/v1/calls")
        }
        self._validators: dict[str, Any] = {}

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
            return self._fits("Envelope" if answer.status == 200 else "ProblemShown", told)
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
            return self._fits("ProblemShown", error["data"])
        if not isinstance(request, dict) or reply["id"] != request["id"]:
            return "a result for another request"
        schema = _RESULT_OF.get(request["method"])
        return self._fits(schema, reply["result"]) if schema else None

    def _fits(self, schema: str, value: Any) -> str | None:
        if (
            isinstance(value, dict)
            and isinstance(value.get("error"), dict)
            and value["error"].get("slug") == "internal"
        ):
            return "internal"
        validator = self._validators.get(schema)
        if validator is None:
            whole = {"$ref": f"#/components/schemas/{schema}", "components": self._components}
            validator = self._validators[schema] = jsonschema_rs.Draft202012Validator(whole)
        return None if validator.is_valid(value) else f"not a {schema}"


def _is_notification(request: Any) -> bool:
    well_formed = (
        isinstance(request, dict)
        and request.get("jsonrpc") == "2.0"
        and isinstance(request.get("method"), str)
        and request.keys() <= {"jsonrpc", "id", "method", "params"}
    )
    return well_formed and "id" not in request


@cache
def _texts() -> st.SearchStrategy[str]:
    """Text with everything Unicode has, lone surrogates and NUL included, and now and then a great deal of it."""
    anything = st.text(st.characters(exclude_categories=()), max_size=30)
    poison = st.sampled_from(
        ["\0", "a\0b", "\ud800", "\udfff\ud800", "\uffff", "\u202e", "", " ", "'; drop table x; --"]
    )
    # Size is bought by repeating: Hypothesis itself would take long to draw a megabyte.
    long = st.builds(
        lambda text, times: text * times, st.sampled_from(["a", "é", "\U0001f600"]), st.integers(1, 40_000)
    )
    return st.one_of(anything, poison, anything, long)


@cache
def _numbers() -> st.SearchStrategy[Any]:
    huge = st.sampled_from(
        [2**53, 2**53 + 1, -(2**63), 2**64, 10**400, 1e308, -0.0, 5e-324, float("nan"), float("inf")]
    )
    return st.one_of(st.integers(), st.floats(), huge)


@cache
def _values() -> st.SearchStrategy[Any]:
    scalars = st.one_of(st.none(), st.booleans(), _numbers(), _texts())
    return st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_texts(), inner, max_size=4)),
        max_leaves=12,
    )


@cache
def _arguments() -> st.SearchStrategy[Any]:
    plain = st.fixed_dictionaries(
        {"text": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)},
        optional={"number": st.integers(-1000, 1000)},
    )
    poisoned = st.fixed_dictionaries(
        {"text": st.one_of(_texts(), _values())},
        optional={
            "number": st.one_of(_numbers(), _values()),
            "whole": _numbers(),
            "many": st.lists(_texts(), max_size=5),
        },
    )
    return st.one_of(plain, poisoned, poisoned, _values())


@cache
def _calls() -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"tool": st.one_of(st.sampled_from(_TOOLS), _texts()), "arguments": _arguments()},
        optional={
            "version": st.one_of(st.sampled_from(["latest", "1.0.0", "^1", "~1.0", "1.x"]), _texts(), _values()),
            "session": st.one_of(st.just("s"), _texts(), _values()),
            "step": _values(),
            "deadline_ms": st.one_of(st.integers(1, 5000), _values()),
            "dry_run": _values(),
            "idempotency_key": st.one_of(st.sampled_from(["k1", "k2", "k3"]), _texts(), _values()),
        },
    )


@cache
def _params(method: str) -> st.SearchStrategy[Any]:
    ids = st.one_of(st.uuids().map(str), _texts())
    shaped = {
        "calls.create": _calls(),
        "calls.get": st.fixed_dictionaries({"call_id": ids}),
        "calls.cancel": st.fixed_dictionaries({"call_id": ids}),
        "tools.list": st.fixed_dictionaries({}, optional={"after": _texts(), "limit": _numbers()}),
        "tools.search": st.fixed_dictionaries({"q": _texts()}, optional={"limit": st.integers(-1, 60)}),
        "tools.get": st.fixed_dictionaries(
            {"name": st.one_of(st.sampled_from(_TOOLS), st.sampled_from(_TOOLS), _texts())},
            optional={"version": st.one_of(st.just("1.0.0"), _texts())},
        ),
    }
    return st.one_of(shaped[method], shaped[method], _values())


def _plain() -> list[Case]:
    """One proper request per method: what every run sends, whatever Hypothesis makes of its seed on this machine."""
    params = {
        "calls.create": {"tool": "fuzz.echo", "arguments": {"text": "plain"}},
        "tools.list": {},
        "tools.search": {"q": "echo"},
        "tools.get": {"name": "fuzz.echo"},
    }
    requests = [{"jsonrpc": "2.0", "id": 1, "method": method, "params": each} for method, each in params.items()]
    return [Case(path="/rpc", body=orjson.dumps(each), headers={}, request=each) for each in requests]


_ABSENT = object()
_KNOWN = st.sampled_from(_METHODS)
_ONE_IN_TEN = st.sampled_from([True] + [False] * 9)
_IDS = st.one_of(st.integers(0, 99), st.integers(0, 99), st.text("abc", max_size=5), _values(), st.just(_ABSENT))


@st.composite
def _requests(draw: st.DrawFn) -> dict[str, Any]:
    method = draw(_KNOWN)
    params = draw(_params(method))
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": draw(_texts()) if draw(_ONE_IN_TEN) else method}
    request["params"] = params
    identity = draw(_IDS)
    if identity is not _ABSENT:
        request["id"] = identity
    if draw(_ONE_IN_TEN):
        request[draw(_texts())] = draw(_values())
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
    # Anything a line of a header can carry; line breaks would make it another request.
    visible = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40)
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
_BATCHES = st.one_of(_requests(), _requests(), st.lists(_requests(), max_size=4))


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    path = draw(_PATHS)
    headers = draw(_headers()) if draw(_ONE_IN_TEN) else {}
    if draw(_ONE_IN_TEN):
        body = draw(_broken_bytes())
        return Case(path=path, body=body, headers=headers, request=_read(body))
    if path == "/v1/calls":
        value = draw(_values()) if draw(_ONE_IN_TEN) else draw(_calls())
    else:
        value = draw(_values()) if draw(_ONE_IN_TEN) else draw(_BATCHES)
    # Python writes NaN and lone surrogates as they are, which is what is wanted here.
    body = json.dumps(value, ensure_ascii=draw(_EITHER)).encode("utf-8", "surrogatepass")
    return Case(path=path, body=body, headers=headers, request=value)


def _read(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
