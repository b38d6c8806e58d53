"""A fuzzer of our own at the MCP door: both eras, its methods and those of others, with values no proper client sends.

Its methods are those of the door: one that nobody here knows how to ask breaks the proof off. Above: `proofs.fuzz`.
Below: `fuzzing`, which sends the cases, and `poison_values`.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
from hypothesis import strategies as st

from deputize.core.mcp import CLIENT_CAPABILITIES, HANDSHAKES, MODERN, PROTOCOL_VERSION, TASKS_EXTENSION
from deputize.doors.mcp.door import MODERN_METHODS, OLDER_METHODS
from proofs.kit.fuzzing import Case, Fuzzed, send_all
from proofs.kit.poison_values import ONE_IN_TEN, header_values, mostly, texts, values
from proofs.kit.wire import Answer, Line

_STATUSES = frozenset({200, 202, 400, 404, 406, 413, 415})
_ACCEPT = "application/json, text/event-stream"
_TOOLS = ("fuzz__echo", "fuzz.note", "fuzz__plead", "calls_get", "calls_cancel", "fuzz__nothing")
_PROMPTS = ("fuzz__prompt", "prompt", "calls_get")
_ADDRESSES = ("test://static-text", "fuzz+test://x/../y", "file:///etc/passwd", "http://127.0.0.1/", "test://{id}")
_ABILITIES: tuple[dict[str, Any], ...] = (
    {},
    {"extensions": {TASKS_EXTENSION: {}}},
    {"elicitation": {"url": {}}},
    {"elicitation": 7},
)


async def fuzz_mcp(url: str, token: str, *, cases: int, seed: int, calls: Sequence[str] = ()) -> Fuzzed:
    """So many cases, the same ones for the same seed but for `calls`, the ids of calls that are really there."""
    line = Line.to(url, token=token)
    plain = [_case(method, _plain(method, calls), modern=True) for method in MODERN_METHODS]
    plain += [_case(method, _plain(method, calls), modern=False) for method in OLDER_METHODS]
    found = await send_all(line, plain, _cases(tuple(calls)), _wrong_with, count=cases, number=seed)
    line.close()
    return found


def _wrong_with(case: Case, answer: Answer) -> str | None:
    if answer.status >= 500:
        return "server error"
    if answer.status not in _STATUSES:
        return f"undocumented status {answer.status}"
    if answer.status == 202:
        return None if not answer.body else "a body where none belongs"
    try:
        told = answer.json()
    except orjson.JSONDecodeError:
        return "an answer that is not JSON"
    if not isinstance(told, dict) or told.get("jsonrpc") != "2.0" or "id" not in told:
        return "not a JSON-RPC reply"
    if ("result" in told) == ("error" in told):
        return "not exactly one of result and error"
    if "error" in told:
        error = told["error"]
        if not isinstance(error.get("code"), int) or not isinstance(error.get("message"), str):
            return "an error without code or message"
        return "internal" if error["code"] == -32603 else None
    if not isinstance(case.request, dict) or told["id"] != case.request.get("id"):
        return "a result for another request"
    result = told["result"]
    if case.request["method"] == "tools/call" and result.get("resultType") in (None, "complete"):
        if not isinstance(result.get("content"), list) or not isinstance(result.get("isError"), bool):
            return "a result of a call without content"
        if result["isError"] and result["structuredContent"]["error"].get("slug") == "internal":
            return "internal"
    return None


def _plain(method: str, calls: Sequence[str]) -> dict[str, Any]:
    some = calls[0] if calls else "nothing"
    proper: dict[str, dict[str, Any]] = {
        "tools/call": {"name": "fuzz__echo", "arguments": {"text": "plain"}},
        "tools/list": {},
        "server/discover": {},
        "ping": {},
        "initialize": {"protocolVersion": HANDSHAKES[0], "capabilities": {}},
        **{f"tasks/{word}": {"taskId": some} for word in ("get", "update", "cancel")},
        **{f"{each}/list": {} for each in ("resources", "resources/templates", "prompts")},
        "resources/read": {"uri": _ADDRESSES[0]},
        "prompts/get": {"name": _PROMPTS[0], "arguments": {"topic": "plain"}},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": _PROMPTS[0]},
            "argument": {"name": "topic", "value": "pl"},
        },
    }
    return proper[method]


def _case(method: str, params: Any, *, modern: bool, abilities: Any = None, **more: Any) -> Case:
    headers = {"accept": _ACCEPT, "mcp-protocol-version": HANDSHAKES[0]}
    if modern:
        if isinstance(params, dict):
            told = params.get("_meta")
            meta = {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: {} if abilities is None else abilities}
            params = {**params, "_meta": {**(told if isinstance(told, dict) else {}), **meta}}
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": method}
        names = (params.get(each) for each in ("name", "taskId", "uri")) if isinstance(params, dict) else ()
        name = next((each for each in names if each), None)
        if isinstance(name, str) and name.isascii() and name.isprintable() and name.strip() == name:
            headers["mcp-name"] = name
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more.pop("members", {})}
    headers |= more.pop("headers", {})
    return Case(path="/mcp", body=json.dumps(request).encode(), headers=headers, request=request)


@cache
def _params(method: str, calls: tuple[str, ...]) -> st.SearchStrategy[Any]:
    call = st.sampled_from(calls) if calls else st.uuids().map(str)
    key = {"dev.deputize/idempotency-key": mostly(st.sampled_from(["k1", "k2"]), values())}
    meta = st.fixed_dictionaries(
        {},
        optional={
            **key,
            "dev.deputize/deadline-ms": st.one_of(st.integers(1, 5000), values()),
            "traceparent": st.one_of(texts(), values()),
            "claudecode/toolUseId": values(),
        },
    )
    arguments = st.one_of(
        st.fixed_dictionaries({"text": st.one_of(texts(), values())}),
        st.fixed_dictionaries({"call_id": st.one_of(call, texts())}, optional={"wait_ms": st.integers(-1, 30)}),
        values(),
    )
    more = {"_meta": meta, "requestState": texts(), "inputResponses": values(), "cursor": texts()}
    if method == "tools/call":
        named = {"name": mostly(st.sampled_from(_TOOLS), texts()), "arguments": arguments}
        return st.fixed_dictionaries(named, optional=more)
    if method.startswith("tasks/"):
        return st.fixed_dictionaries({"taskId": st.one_of(call, texts(), values())}, optional=more)
    if method in ("resources/read", "prompts/get", "completion/complete"):
        return st.fixed_dictionaries(_of_servers(method), optional=more)
    told = {"protocolVersion": st.one_of(st.sampled_from(HANDSHAKES), values()), "capabilities": values()}
    return st.fixed_dictionaries({}, optional={**more, **told})


def _of_servers(method: str) -> dict[str, st.SearchStrategy[Any]]:
    """What is asked of resources, prompts and completions."""
    address, prompt = mostly(st.sampled_from(_ADDRESSES), texts()), mostly(st.sampled_from(_PROMPTS), texts())
    if method == "resources/read":
        return {"uri": st.one_of(address, values())}
    if method == "prompts/get":
        return {"name": st.one_of(prompt, values()), "arguments": values()}
    kinds = st.one_of(st.sampled_from(["ref/prompt", "ref/resource"]), texts())
    ref = st.fixed_dictionaries({"type": kinds}, optional={"name": prompt, "uri": address})
    argument = st.fixed_dictionaries({"name": texts(), "value": st.one_of(texts(), values())})
    return {"ref": st.one_of(ref, values()), "argument": st.one_of(argument, values()), "context": values()}


@st.composite
def _cases(draw: st.DrawFn, calls: tuple[str, ...]) -> Case:
    modern = draw(st.booleans())
    method = draw(st.sampled_from(["tools/call", *(MODERN_METHODS if modern else OLDER_METHODS)]))
    params = draw(values()) if draw(ONE_IN_TEN) else draw(_params(method, calls))
    members: dict[str, Any] = {}
    if draw(ONE_IN_TEN):
        members[draw(st.sampled_from(["id", "jsonrpc", "method", "more"]))] = draw(values())
    headers: dict[str, str] = {}
    if draw(ONE_IN_TEN):
        named = st.sampled_from(["mcp-method", "mcp-name", "mcp-protocol-version", "accept", "mcp-session-id"])
        headers[draw(named)] = draw(header_values())
    if draw(ONE_IN_TEN):
        headers["idempotency-key"] = draw(header_values())
    abilities = draw(st.one_of(st.sampled_from(_ABILITIES), values())) if draw(ONE_IN_TEN) else None
    case = _case(method, params, modern=modern, abilities=abilities, members=members, headers=headers)
    if draw(ONE_IN_TEN):
        cut = draw(st.integers(0, max(0, len(case.body) - 1)))
        return Case(path=case.path, body=case.body[:cut] or b"{", headers=case.headers, request=None)
    return case
