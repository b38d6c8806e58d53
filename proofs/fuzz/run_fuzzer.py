"""The routes about runs, asked about things that are really there: calls in any state, approval requests, approvals,
callbacks.

Which routes there are, what they take and what they may answer is read from the API document; a path that needs what
no one here can name breaks the proof off.
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

from proofs.fuzz.runner import Case, DocumentSchemas, FuzzResult, run_cases
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

_TASKS = "/v1/human-tasks"
_APPROVALS, _SUGGESTIONS = "/v1/approvals", "/v1/approvals/suggestions"
# What waits for people tells of itself for as long as it waits, which is longer than a fuzzer listens.
_STREAM = "/v1/calls/{call_id}/events"
_ABOUT_RUNS = ("/v1/calls/", _TASKS, "/v1/webhooks", _APPROVALS)
_EVENTS = "text/event-stream"
_LONGEST_ID = 200
_READY_SECONDS = 120.0
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
class SeedData:
    """Ids of what is really there, by the parameter that means them, for some routes by their path; and for some
    routes one that they can do their work on. `people` are tokens of those who may decide, the first of whom may do
    everything that can be done about an approval request.
    """

    ids_by_name: Mapping[str, Sequence[str]]
    ready_ids: Mapping[str, str]
    people: Sequence[str]

    @property
    def bindings_by_id(self) -> dict[str, str]:
        return dict(zip(self.ids_by_name[_APPROVALS], self.ids_by_name["binding"], strict=True))


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
    def is_for_approvers(self) -> bool:
        """Whether it is for people who sign in to decide; what was learned from them is an administrator's."""
        return self.path.startswith(_APPROVALS) and self.path != _SUGGESTIONS


def list_routes(document: dict[str, Any]) -> list[Route]:
    return [
        _build_route(document, verb, path, operation)
        for path, operations in document["paths"].items()
        if path.startswith(_ABOUT_RUNS)
        for verb, operation in operations.items()
    ]


def _build_route(document: dict[str, Any], verb: str, path: str, operation: dict[str, Any]) -> Route:
    parameters = operation.get("parameters", ())
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema_name = body.get("$ref", "").rpartition("/")[2]
    return Route(
        method=verb.upper(),
        path=path,
        parameters={
            place: [each["name"] for each in parameters if each["in"] == place] for place in ("path", "query", "header")
        },
        schemas={each["name"]: each.get("schema", {}) for each in parameters},
        fields=document["components"]["schemas"][schema_name]["properties"] if schema_name else {},
        responses=operation["responses"],
    )


async def create_seed_data(url: str, token: str, people: Sequence[str], *, approvals: int) -> SeedData:
    """Runs that end well, badly or not at all, and what comes of those; so many calls that people are asked about."""
    http = HttpConnection.for_url(url, token=token)
    approval_calls = [await _request_approval(http, text) for text in islice(cycle(HOSTILE_TEXTS), approvals)]
    runs = {
        tool: [await _start_run(http, tool, number) for number in range(_OF_EACH)] for tool in ("slip", "lose", "steps")
    }
    callback_runs = [await _start_run(http, "echo", number, callback={"url": _NOBODY}) for number in range(_OF_EACH)]
    task_ids = await _wait_for_items(http, _TASKS, "tasks", "task_id")
    deliveries = await _wait_for_items(http, "/v1/webhooks/deadletters", "deadletters", "id")
    # Last, for they do not linger for ever.
    slow_runs = [await _start_run(http, "linger", number) for number in range(_OF_EACH)]
    approval_ids = [each["approval"]["approval_id"] for each in approval_calls]
    bindings = [(await http.get(f"{_APPROVALS}/{each}")).json()["binding"] for each in approval_ids]
    http.close()
    run_ids = [each for ids in (*runs.values(), callback_runs, slow_runs) for each in ids]
    one, word = "POST /v1/calls/{call_id}", f"POST {_APPROVALS}/{{approval_id}}"
    return SeedData(
        ids_by_name={
            "call_id": [*run_ids, *(each["call_id"] for each in approval_calls)],
            "task_id": task_ids,
            "approval_id": approval_ids,
            "delivery_id": deliveries,
            "binding": bindings,
            _APPROVALS: approval_ids,
            _STREAM: run_ids,
        },
        ready_ids={
            f"{one}/cancel": slow_runs[0],
            f"{one}/rollback": runs["slip"][0],
            f"{one}/retry": runs["slip"][1],
            "GET /v1/calls/{call_id}/decision": approval_calls[0]["call_id"],
            f"GET {_APPROVALS}/{{approval_id}}": approval_ids[0],
            f"{word}/approve": approval_ids[0],
            f"{word}/deny": approval_ids[1],
            f"{word}/break-glass": approval_ids[2],
            f"POST {_APPROVALS}/batch": approval_ids[3],
            f"POST {_TASKS}/{{task_id}}/resolve": task_ids[0],
        },
        people=people,
    )


async def _request_approval(http: HttpConnection, text: str) -> dict[str, Any]:
    answer = await http.post("/v1/calls", {"tool": "fuzz.plead", "arguments": {"text": text}})
    if answer.status != 202:
        raise RuntimeError(f"nobody was asked about a call: {answer.status} {answer.body!r}")
    call: dict[str, Any] = answer.json()
    return call


async def _start_run(http: HttpConnection, tool: str, number: int, **more: Any) -> str:
    request = {"tool": f"fuzz.{tool}", "arguments": {"text": f"{tool} {number}"}, "mode": "async", **more}
    answer = await http.post("/v1/calls", request)
    if answer.status != 202:
        raise RuntimeError(f"a run was not taken on: {answer.status} {answer.body!r}")
    return str(answer.json()["call_id"])


async def _wait_for_items(http: HttpConnection, path: str, what: str, name: str) -> list[str]:
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            items = (await http.get(path)).json()[what]
            if len(items) >= _OF_EACH:
                return [each[name] for each in items]
            await asyncio.sleep(0.1)


async def fuzz_runs(url: str, token: str, seed_data: SeedData, *, cases: int, seed: int) -> FuzzResult:
    """So many cases about the things that are known, and now and then about others."""
    http = HttpConnection.for_url(url, token=token)
    checker = RunAnswerChecker((await http.get("/openapi.json")).json())
    for route in checker.routes:
        unnamed_parameters = set(route.parameters["path"]) - seed_data.ids_by_name.keys()
        if unnamed_parameters:
            raise RuntimeError(f"{route.name} needs {unnamed_parameters}, and the proof cannot name one")
    plain = [_build_plain_case(route, seed_data) for route in checker.routes]
    result = await run_cases(
        http, plain, _build_cases(checker.routes, seed_data), checker.find_fault, count=cases, number=seed
    )
    result.never_done = sorted({route.name for route in checker.routes} - checker.done_routes)
    http.close()
    return result


class RunAnswerChecker:
    """Holds answers against the document; a case's request is its route."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas = DocumentSchemas(document)
        self.routes = list_routes(document)
        self.done_routes: set[str] = set()

    def find_fault(self, case: Case, answer: HttpResponse) -> str | None:
        if answer.status >= 500:
            return "server error"
        response_spec = case.request.responses.get(str(answer.status))
        if response_spec is None:
            return f"undocumented status {answer.status}"
        if answer.status < 300:
            self.done_routes.add(case.request.name)
        media = answer.headers.get("content-type", "").partition(";")[0]
        if media not in response_spec["content"]:
            return f"undocumented media {media}"
        if media == _EVENTS:
            return find_stream_fault(answer.body)
        try:
            payload = answer.json()
        except orjson.JSONDecodeError:
            return "an answer that is not JSON"
        return self._schemas.find_mismatch(response_spec["content"][media]["schema"], payload)


def find_stream_fault(body: bytes) -> str | None:
    """Server-sent events, each named and with one JSON value."""
    for block in body.decode(errors="replace").split("\n\n"):
        lines = [http.partition(": ") for http in block.splitlines() if not http.startswith(":")]
        event = {name: value for name, _, value in lines}
        if event.keys() <= {"retry"}:
            continue
        if not event.keys() <= {"retry", "id", "event", "data"} or "event" not in event:
            return "not an event"
        try:
            payload = orjson.loads(event.get("data", ""))
        except orjson.JSONDecodeError:
            return "an event that is not JSON"
        if event["event"] == "error":
            return "internal" if payload["error"]["slug"] == "internal" else "a stream that broke off"
    return None


def _build_plain_case(route: Route, seed_data: SeedData) -> Case:
    """A proper request about something it can be done to."""
    ready_id = seed_data.ready_ids.get(route.name)
    first = {name: ready_id or ids[0] for name, ids in seed_data.ids_by_name.items()}
    body = {name: _build_proper_value(schema, ready_id or "half") for name, schema in route.fields.items()}
    body = _add_bindings(body, ready_id or "", seed_data.bindings_by_id)
    return Case(
        path=route.path.format(**first), body=orjson.dumps(body) if body else b"", method=route.method, request=route,
        headers=_build_auth_header(seed_data.people[0]) if route.is_for_approvers else {},
    )  # fmt: skip


def _build_proper_value(schema: Mapping[str, Any], ready_id: str) -> Any:
    if _list_enum(schema):
        return _list_enum(schema)[0]
    if any(way.get("type") == "null" for way in schema.get("anyOf", ())):
        return None
    if schema.get("type") == "array":
        return [_build_proper_value(schema["items"], ready_id)]
    return ready_id if schema.get("format") == "uuid" else "half"


def _add_bindings(body: dict[str, Any], approval_id: str, bindings: Mapping[str, str]) -> dict[str, Any]:
    """Give each approval request that is decided the binding it has, so that decisions are about what is there."""
    if body.get("binding") and approval_id in bindings:
        body["binding"] = bindings[approval_id]
    if "bindings" in body:
        body["bindings"] = {each: bindings[each] for each in body["approval_ids"] if each in bindings}
    return body


def _build_auth_header(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@st.composite
def _build_cases(draw: st.DrawFn, routes: Sequence[Route], seed_data: SeedData) -> Case:
    route = draw(st.sampled_from(routes))
    path = route.path
    for name in route.parameters["path"]:
        known_ids = (
            seed_data.ids_by_name.get(_APPROVALS if route.is_for_approvers else route.path)
            or seed_data.ids_by_name[name]
        )
        path = path.replace(f"{{{name}}}", draw(_build_ids(known_ids)))
    query_values = {
        name: draw(_build_words(route.schemas[name], seed_data))
        for name in route.parameters["query"]
        if draw(st.booleans())
    }
    encoded_values = {
        name: str(value).encode("utf-8", "surrogatepass") for name, value in query_values.items() if value is not None
    }
    query = urlencode(encoded_values)
    headers = {
        name: draw(_HEADERS)
        for name in route.parameters["header"]
        if draw(ONE_IN_TEN if route.is_for_approvers else st.booleans())
    }
    headers |= (
        _build_auth_header(draw(st.sampled_from(seed_data.people)))
        if route.is_for_approvers and not draw(ONE_IN_TEN)
        else {}
    )
    full_path = f"{path}?{query}" if query else path
    return Case(
        path=full_path,
        body=draw(_build_bodies(route, seed_data, path)),
        headers=headers,
        method=route.method,
        request=route,
    )


_HEADERS = st.one_of(st.sampled_from(_EVENT_IDS), build_header_values())


def _build_ids(known_ids: Sequence[str]) -> st.SearchStrategy[str]:
    """As the path carries them: mostly of something that is there, spelt in this way or that."""
    known_strategy = st.sampled_from(known_ids)
    # What is empty, or a step in the path, would be another route.
    others = build_texts().map(lambda text: text.replace("/", "")[:_LONGEST_ID]).filter(lambda text: text.strip(". "))
    quoted_texts = others.map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe=""))
    return mix_mostly(known_strategy, st.one_of(known_strategy.map(str.upper), st.uuids().map(str), quoted_texts))


def _build_words(schema: Mapping[str, Any], seed_data: SeedData) -> st.SearchStrategy[Any]:
    odd = st.one_of(st.integers(0, 60), build_numbers(), build_texts().map(lambda text: text[:_LONGEST_ID]))
    return mix_mostly(_build_fitting_values(schema, seed_data), odd)


def _build_fitting_values(schema: Mapping[str, Any], seed_data: SeedData) -> st.SearchStrategy[Any]:
    """What the document would take: text that means something there, or that is meant for anyone who reads it."""
    if _list_enum(schema):
        return st.sampled_from(_list_enum(schema))
    if "anyOf" in schema:
        return st.one_of([_build_fitting_values(option, seed_data) for option in schema["anyOf"]])
    if schema.get("type") == "null":
        return st.none()
    if schema.get("type") == "array":
        return st.lists(_build_fitting_values(schema["items"], seed_data), min_size=1, max_size=4)
    if schema.get("type") == "object":
        return st.dictionaries(st.uuids().map(str), _build_fitting_values(schema["additionalProperties"], seed_data))
    if schema.get("type") == "integer":
        return st.integers(schema.get("minimum", 0), schema.get("maximum", 60))
    if schema.get("format") == "date-time":
        return st.sampled_from(_MOMENTS)
    if schema.get("format") == "uuid":
        return mix_mostly(st.sampled_from(seed_data.ids_by_name[_APPROVALS]), st.uuids().map(str))
    return st.sampled_from(seed_data.ids_by_name["binding"] if "pattern" in schema else (*_WORDS, *HOSTILE_TEXTS))


def _list_enum(schema: Mapping[str, Any]) -> list[str]:
    """What a schema lists, itself or in one of its ways."""
    values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    return values + [each for option in schema.get("anyOf", ()) for each in _list_enum(option)]


def _build_bodies(route: Route, seed_data: SeedData, path: str) -> st.SearchStrategy[bytes]:
    if not route.fields:
        return st.just(b"")
    approval_id, bindings = path.removeprefix(f"{_APPROVALS}/").partition("/")[0], seed_data.bindings_by_id
    fitting_values = st.fixed_dictionaries(
        {name: _build_fitting_values(schema, seed_data) for name, schema in route.fields.items()}
    ).map(lambda body: _add_bindings(body, approval_id, bindings))
    word_values = st.fixed_dictionaries(
        {name: _build_words(schema, seed_data) for name, schema in route.fields.items()}
    )
    odd = st.fixed_dictionaries({}, optional={name: build_values() for name in route.fields})
    value = mix_mostly(fitting_values, st.one_of(word_values, odd, build_values()))
    return value.map(lambda each: json.dumps(each).encode("utf-8", "surrogatepass"))
