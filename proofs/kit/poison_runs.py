"""The routes about runs, asked about things that are really there: calls in any state, tickets, approvals, callbacks.

Which routes there are, what they take and what they may answer is read from the API document; a path that needs what
nobody here can name breaks the proof off. Above: `proofs.fuzz`. Below: `fuzzing` and `poison_values`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from hypothesis import strategies as st

from proofs.kit.fuzzing import Case, Documented, Fuzzed, send_all
from proofs.kit.poison_values import HOSTILE, ONE_IN_TEN, header_values, mostly, numbers, texts, values
from proofs.kit.wire import Answer, Line

_APPROVALS, _LEARNED = "/v1/approvals", "/v1/approvals/suggestions"
# What waits for people tells of itself for as long as it waits, which is longer than a fuzzer listens.
_STREAM = "/v1/calls/{call_id}/events"
_ABOUT_RUNS = ("/v1/calls/", "/v1/tickets", "/v1/webhooks", _APPROVALS)
_EVENTS = "text/event-stream"
_LONGEST_ID = 200
_READY_SECONDS = 30.0
_OF_EACH = 4
# Nobody listens there, so that whoever wants to be called back is given up on.
_NOBODY = "http://127.0.0.1:9/"
# Words that mean something to some field; the others are drawn from the document.
_WORDS = ("half", "I looked", "default", "open", "text")
_MOMENTS = (
    "2026-01-01T00:00:00Z", "2026-01-01", "2026-01-01T00:00:00", "1969-12-31T23:59:59.999Z",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-12:00",
)  # fmt: skip
_EVENT_IDS = ("1.running.0", "1.succeeded.3", "0.queued.0", "9.nothing.9", "1.running.99999999999")


@dataclass(frozen=True, kw_only=True, slots=True)
class Things:
    """Ids of what is really there, by the parameter that means them, for some routes by their path; and for some routes
    one that they can do their work on.
    `people` are tokens of those who may decide, the first of whom may do everything that can be done about a ticket.
    """

    known: Mapping[str, Sequence[str]]
    ripe: Mapping[str, str]
    people: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    method: str
    path: str
    parameters: Mapping[str, Sequence[str]]
    """Names of what it takes, by where: path, query or header."""
    schemas: Mapping[str, Any]
    fields: Mapping[str, Any]
    """The body's fields with their schemas; none where it takes no body."""
    responses: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def decides(self) -> bool:
        """Whether it is for people who sign in to decide; what was learned from them is an administrator's."""
        return self.path.startswith(_APPROVALS) and self.path != _LEARNED


def routes_of(document: dict[str, Any]) -> list[Route]:
    return [
        _route(document, verb, path, operation)
        for path, operations in document["paths"].items()
        if path.startswith(_ABOUT_RUNS)
        for verb, operation in operations.items()
    ]


def _route(document: dict[str, Any], verb: str, path: str, operation: dict[str, Any]) -> Route:
    taken = operation.get("parameters", ())
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    named = body.get("$ref", "").rpartition("/")[2]
    return Route(
        method=verb.upper(),
        path=path,
        parameters={
            place: [each["name"] for each in taken if each["in"] == place] for place in ("path", "query", "header")
        },
        schemas={each["name"]: each.get("schema", {}) for each in taken},
        fields=document["components"]["schemas"][named]["properties"] if named else {},
        responses=operation["responses"],
    )


async def furnish(url: str, token: str, people: Sequence[str], *, approvals: int) -> Things:
    """Runs that end well, badly or not at all, and what comes of those; so many calls that people are asked about."""
    line = Line.to(url, token=token)
    asked = [await _ask(line, text) for text in islice(cycle(HOSTILE), approvals)]
    made = {tool: [await _run(line, tool, number) for number in range(_OF_EACH)] for tool in ("slip", "lose", "steps")}
    told = [await _run(line, "echo", number, callback={"url": _NOBODY}) for number in range(_OF_EACH)]
    tickets = await _listed(line, "/v1/tickets", "tickets", "ticket_id")
    deliveries = await _listed(line, "/v1/webhooks/deadletters", "deadletters", "id")
    # Last, for they do not linger for ever.
    lingering = [await _run(line, "linger", number) for number in range(_OF_EACH)]
    waits = [each["approval"]["ticket_id"] for each in asked]
    bindings = [(await line.get(f"{_APPROVALS}/{each}")).json()["binding"] for each in waits]
    line.close()
    ended = [each for ids in (*made.values(), told, lingering) for each in ids]
    one, word = "POST /v1/calls/{call_id}", f"POST {_APPROVALS}/{{ticket_id}}"
    return Things(
        known={
            "call_id": [*ended, *(each["call_id"] for each in asked)], "ticket_id": [*tickets, *waits],
            "delivery_id": deliveries, "binding": bindings, _APPROVALS: waits, _STREAM: ended,
        },
        ripe={
            f"{one}/cancel": lingering[0], f"{one}/rollback": made["slip"][0], f"{one}/retry": made["slip"][1],
            "GET /v1/calls/{call_id}/decision": asked[0]["call_id"],
            f"GET {_APPROVALS}/{{ticket_id}}": waits[0], f"{word}/approve": waits[0], f"{word}/deny": waits[1],
            f"{word}/break-glass": waits[2], f"POST {_APPROVALS}/batch": waits[3],
        },
        people=people,
    )  # fmt: skip


async def _ask(line: Line, text: str) -> dict[str, Any]:
    answer = await line.post("/v1/calls", {"tool": "fuzz.plead", "arguments": {"text": text}})
    if answer.status != 202:
        raise RuntimeError(f"nobody was asked about a call: {answer.status} {answer.body!r}")
    made: dict[str, Any] = answer.json()
    return made


async def _run(line: Line, tool: str, number: int, **more: Any) -> str:
    asked = {"tool": f"fuzz.{tool}", "arguments": {"text": f"{tool} {number}"}, "mode": "async", **more}
    answer = await line.post("/v1/calls", asked)
    if answer.status != 202:
        raise RuntimeError(f"a run was not taken on: {answer.status} {answer.body!r}")
    return str(answer.json()["call_id"])


async def _listed(line: Line, path: str, what: str, name: str) -> list[str]:
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            found = (await line.get(path)).json()[what]
            if len(found) >= _OF_EACH:
                return [each[name] for each in found]
            await asyncio.sleep(0.1)


async def fuzz_runs(url: str, token: str, things: Things, *, cases: int, seed: int) -> Fuzzed:
    """So many cases about the things that are known, and now and then about others."""
    line = Line.to(url, token=token)
    judge = _Judge((await line.get("/openapi.json")).json())
    for route in judge.routes:
        unknown = set(route.parameters["path"]) - things.known.keys()
        if unknown:
            raise RuntimeError(f"{route.name} needs {unknown}, and the proof cannot name one")
    plain = [_plain(route, things) for route in judge.routes]
    found = await send_all(line, plain, _cases(judge.routes, things), judge.wrong_with, count=cases, number=seed)
    found.undone = sorted({route.name for route in judge.routes} - judge.done)
    line.close()
    return found


class _Judge:
    """Holds answers against the document; a case's request is its route."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._documented = Documented(document)
        self.routes = routes_of(document)
        self.done: set[str] = set()

    def wrong_with(self, case: Case, answer: Answer) -> str | None:
        if answer.status >= 500:
            return "server error"
        documented = case.request.responses.get(str(answer.status))
        if documented is None:
            return f"undocumented status {answer.status}"
        if answer.status < 300:
            self.done.add(case.request.name)
        media = answer.headers.get("content-type", "").partition(";")[0]
        if media not in documented["content"]:
            return f"undocumented media {media}"
        if media == _EVENTS:
            return wrong_with_stream(answer.body)
        try:
            told = answer.json()
        except orjson.JSONDecodeError:
            return "an answer that is not JSON"
        return self._documented.fits(documented["content"][media]["schema"], told)


def wrong_with_stream(body: bytes) -> str | None:
    """Server-sent events, each named and with one JSON value."""
    for block in body.decode(errors="replace").split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if not line.startswith(":")]
        said = {name: value for name, _, value in lines}
        if said.keys() <= {"retry"}:
            continue
        if not said.keys() <= {"retry", "id", "event", "data"} or "event" not in said:
            return "not an event"
        try:
            told = orjson.loads(said.get("data", ""))
        except orjson.JSONDecodeError:
            return "an event that is not JSON"
        if said["event"] == "error":
            return "internal" if told["error"]["slug"] == "internal" else "a stream that broke off"
    return None


def _plain(route: Route, things: Things) -> Case:
    """A proper request about something it can be done to."""
    ripe = things.ripe.get(route.name)
    first = {name: ripe or ids[0] for name, ids in things.known.items()}
    body = {name: _proper(schema, ripe or "half") for name, schema in route.fields.items()}
    return Case(
        path=route.path.format(**first), body=orjson.dumps(body) if body else b"", method=route.method, request=route,
        headers=_shown(things.people[0]) if route.decides else {},
    )  # fmt: skip


def _proper(schema: Mapping[str, Any], ripe: str) -> Any:
    if _enum(schema):
        return _enum(schema)[0]
    if any(way.get("type") == "null" for way in schema.get("anyOf", ())):
        return None
    if schema.get("type") == "array":
        return [_proper(schema["items"], ripe)]
    return ripe if schema.get("format") == "uuid" else "half"


def _shown(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@st.composite
def _cases(draw: st.DrawFn, routes: Sequence[Route], things: Things) -> Case:
    route = draw(st.sampled_from(routes))
    path = route.path
    for name in route.parameters["path"]:
        known = things.known.get(_APPROVALS if route.decides else route.path) or things.known[name]
        path = path.replace(f"{{{name}}}", draw(_ids(known)))
    asked = {
        name: draw(_words(route.schemas[name], things)) for name in route.parameters["query"] if draw(st.booleans())
    }
    told = {name: str(value).encode("utf-8", "surrogatepass") for name, value in asked.items() if value is not None}
    query = urlencode(told)
    headers = {
        name: draw(_HEADERS)
        for name in route.parameters["header"]
        if draw(ONE_IN_TEN if route.decides else st.booleans())
    }
    headers |= _shown(draw(st.sampled_from(things.people))) if route.decides and not draw(ONE_IN_TEN) else {}
    whole = f"{path}?{query}" if query else path
    return Case(path=whole, body=draw(_bodies(route, things)), headers=headers, method=route.method, request=route)


_HEADERS = st.one_of(st.sampled_from(_EVENT_IDS), header_values())


def _ids(known: Sequence[str]) -> st.SearchStrategy[str]:
    """As the path carries them: mostly of something that is there, spelt in this way or that."""
    there = st.sampled_from(known)
    # What is empty, or a step in the path, would be another route.
    others = texts().map(lambda text: text.replace("/", "")[:_LONGEST_ID]).filter(lambda text: text.strip(". "))
    written = others.map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe=""))
    return mostly(there, st.one_of(there.map(str.upper), st.uuids().map(str), written))


def _words(schema: Mapping[str, Any], things: Things) -> st.SearchStrategy[Any]:
    odd = st.one_of(st.integers(0, 60), numbers(), texts().map(lambda text: text[:_LONGEST_ID]))
    return mostly(_fitting(schema, things), odd)


def _fitting(schema: Mapping[str, Any], things: Things) -> st.SearchStrategy[Any]:
    """What the document would take: text that means something there, or that is meant for whoever reads it."""
    if _enum(schema):
        return st.sampled_from(_enum(schema))
    if "anyOf" in schema:
        return st.one_of([_fitting(way, things) for way in schema["anyOf"]])
    if schema.get("type") == "null":
        return st.none()
    if schema.get("type") == "array":
        return st.lists(_fitting(schema["items"], things), min_size=1, max_size=4)
    if schema.get("type") == "integer":
        return st.integers(schema.get("minimum", 0), schema.get("maximum", 60))
    if schema.get("format") == "date-time":
        return st.sampled_from(_MOMENTS)
    if schema.get("format") == "uuid":
        return mostly(st.sampled_from(things.known[_APPROVALS]), st.uuids().map(str))
    return st.sampled_from(things.known["binding"] if "pattern" in schema else (*_WORDS, *HOSTILE))


def _enum(schema: Mapping[str, Any]) -> list[str]:
    """What a schema lists, itself or in one of its ways."""
    listed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    return listed + [each for way in schema.get("anyOf", ()) for each in _enum(way)]


def _bodies(route: Route, things: Things) -> st.SearchStrategy[bytes]:
    if not route.fields:
        return st.just(b"")
    fitting = st.fixed_dictionaries({name: _fitting(schema, things) for name, schema in route.fields.items()})
    worded = st.fixed_dictionaries({name: _words(schema, things) for name, schema in route.fields.items()})
    odd = st.fixed_dictionaries({}, optional={name: values() for name in route.fields})
    value = mostly(fitting, st.one_of(worded, odd, values()))
    return value.map(lambda each: json.dumps(each).encode("utf-8", "surrogatepass"))
