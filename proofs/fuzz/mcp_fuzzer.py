"""A fuzzer of our own at the MCP interface: both eras, its methods and those of others, with values no proper client
sends.

Its methods are those of the interface: one that no one here knows how to ask breaks the proof off.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
from hypothesis import strategies as st

from deputize.core.mcp.constants import (
    CLIENT_CAPABILITIES,
    HANDSHAKE_VERSIONS,
    MODERN_VERSION,
    PROTOCOL_VERSION_KEY,
    TASKS_EXTENSION,
)
from deputize.interfaces.mcp.endpoint import LEGACY_METHODS, MODERN_METHODS
from proofs.fuzz.runner import Case, FuzzResult, run_cases
from proofs.fuzz.values import ONE_IN_TEN, build_header_values, build_texts, build_values, mix_mostly
from proofs.kit.http_client import HttpConnection, HttpResponse

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


async def fuzz_mcp(url: str, token: str, *, cases: int, seed: int, calls: Sequence[str] = ()) -> FuzzResult:
    """So many cases, the same ones for the same seed but for `calls`, the ids of calls that are really there."""
    http = HttpConnection.for_url(url, token=token)
    plain = [_build_case(method, _build_plain_params(method, calls), modern=True) for method in MODERN_METHODS]
    plain += [_build_case(method, _build_plain_params(method, calls), modern=False) for method in LEGACY_METHODS]
    result = await run_cases(http, plain, _build_cases(tuple(calls)), find_answer_fault, count=cases, number=seed)
    http.close()
    return result


def find_answer_fault(case: Case, answer: HttpResponse) -> str | None:
    if answer.status >= 500:
        return "server error"
    if answer.status not in _STATUSES:
        return f"undocumented status {answer.status}"
    if answer.status == 202:
        return None if not answer.body else "a body where none belongs"
    try:
        payload = answer.json()
    except orjson.JSONDecodeError:
        return "an answer that is not JSON"
    if not isinstance(payload, dict) or payload.get("jsonrpc") != "2.0" or "id" not in payload:
        return "not a JSON-RPC reply"
    if ("result" in payload) == ("error" in payload):
        return "not exactly one of result and error"
    if "error" in payload:
        error = payload["error"]
        if not isinstance(error.get("code"), int) or not isinstance(error.get("message"), str):
            return "an error without code or message"
        return "internal" if error["code"] == -32603 else None
    if not isinstance(case.request, dict) or payload["id"] != case.request.get("id"):
        return "a result for another request"
    result = payload["result"]
    if case.request["method"] == "tools/call" and result.get("resultType") in (None, "complete"):
        if not isinstance(result.get("content"), list) or not isinstance(result.get("isError"), bool):
            return "a result of a call without content"
        if result["isError"] and result["structuredContent"]["error"].get("slug") == "internal":
            return "internal"
    return None


def _build_plain_params(method: str, calls: Sequence[str]) -> dict[str, Any]:
    some = calls[0] if calls else "nothing"
    proper: dict[str, dict[str, Any]] = {
        "tools/call": {"name": "fuzz__echo", "arguments": {"text": "plain"}},
        "tools/list": {},
        "server/discover": {},
        "ping": {},
        "initialize": {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": {}},
        **{f"tasks/{word}": {"taskId": some} for word in ("get", "update", "cancel")},
        **{f"{each}/list": {} for each in ("resources", "resources/templates", "prompts")},
        "resources/read": {"uri": _ADDRESSES[0]},
        "prompts/get": {"name": _PROMPTS[0], "arguments": {"topic": "plain"}},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": _PROMPTS[0]},
            "argument": {"name": "topic", "value": "pl"},
        },
        "dev.deputize/negotiate": {"name": "fuzz__echo", "input": {"fields": ["/text"]}},
    }
    return proper[method]


def _build_case(method: str, params: Any, *, modern: bool, abilities: Any = None, **more: Any) -> Case:
    headers = {"accept": _ACCEPT, "mcp-protocol-version": HANDSHAKE_VERSIONS[0]}
    if modern:
        if isinstance(params, dict):
            meta_in = params.get("_meta")
            meta = {PROTOCOL_VERSION_KEY: MODERN_VERSION, CLIENT_CAPABILITIES: {} if abilities is None else abilities}
            params = {**params, "_meta": {**(meta_in if isinstance(meta_in, dict) else {}), **meta}}
        headers |= {"mcp-protocol-version": MODERN_VERSION, "mcp-method": method}
        names = (params.get(each) for each in ("name", "taskId", "uri")) if isinstance(params, dict) else ()
        name = next((each for each in names if each), None)
        if isinstance(name, str) and name.isascii() and name.isprintable() and name.strip() == name:
            headers["mcp-name"] = name
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more.pop("members", {})}
    headers |= more.pop("headers", {})
    return Case(path="/mcp", body=json.dumps(request).encode(), headers=headers, request=request)


@cache
def _build_params(method: str, calls: tuple[str, ...]) -> st.SearchStrategy[Any]:
    call = st.sampled_from(calls) if calls else st.uuids().map(str)
    key = {"dev.deputize/idempotency-key": mix_mostly(st.sampled_from(["k1", "k2"]), build_values())}
    meta = st.fixed_dictionaries(
        {},
        optional={
            **key,
            "dev.deputize/deadline-ms": st.one_of(st.integers(1, 5000), build_values()),
            "traceparent": st.one_of(build_texts(), build_values()),
            "claudecode/toolUseId": build_values(),
        },
    )
    arguments = st.one_of(
        st.fixed_dictionaries({"text": st.one_of(build_texts(), build_values())}),
        st.fixed_dictionaries({"call_id": st.one_of(call, build_texts())}, optional={"wait_ms": st.integers(-1, 30)}),
        build_values(),
    )
    more = {"_meta": meta, "requestState": build_texts(), "inputResponses": build_values(), "cursor": build_texts()}
    if method == "tools/call":
        tool_call = {"name": mix_mostly(st.sampled_from(_TOOLS), build_texts()), "arguments": arguments}
        return st.fixed_dictionaries(tool_call, optional=more)
    if method.startswith("tasks/"):
        return st.fixed_dictionaries({"taskId": st.one_of(call, build_texts(), build_values())}, optional=more)
    if method in ("resources/read", "prompts/get", "completion/complete"):
        return st.fixed_dictionaries(_build_server_params(method), optional=more)
    handshake = {
        "protocolVersion": st.one_of(st.sampled_from(HANDSHAKE_VERSIONS), build_values()),
        "capabilities": build_values(),
    }
    return st.fixed_dictionaries({}, optional={**more, **handshake})


def _build_server_params(method: str) -> dict[str, st.SearchStrategy[Any]]:
    """What is asked of resources, prompts and completions."""
    address, prompt = (
        mix_mostly(st.sampled_from(_ADDRESSES), build_texts()),
        mix_mostly(st.sampled_from(_PROMPTS), build_texts()),
    )
    if method == "resources/read":
        return {"uri": st.one_of(address, build_values())}
    if method == "prompts/get":
        return {"name": st.one_of(prompt, build_values()), "arguments": build_values()}
    kinds = st.one_of(st.sampled_from(["ref/prompt", "ref/resource"]), build_texts())
    ref = st.fixed_dictionaries({"type": kinds}, optional={"name": prompt, "uri": address})
    argument = st.fixed_dictionaries({"name": build_texts(), "value": st.one_of(build_texts(), build_values())})
    return {
        "ref": st.one_of(ref, build_values()),
        "argument": st.one_of(argument, build_values()),
        "context": build_values(),
    }


@st.composite
def _build_cases(draw: st.DrawFn, calls: tuple[str, ...]) -> Case:
    modern = draw(st.booleans())
    method = draw(st.sampled_from(["tools/call", *(MODERN_METHODS if modern else LEGACY_METHODS)]))
    params = draw(build_values()) if draw(ONE_IN_TEN) else draw(_build_params(method, calls))
    members: dict[str, Any] = {}
    if draw(ONE_IN_TEN):
        members[draw(st.sampled_from(["id", "jsonrpc", "method", "more"]))] = draw(build_values())
    headers: dict[str, str] = {}
    if draw(ONE_IN_TEN):
        header_names = st.sampled_from(["mcp-method", "mcp-name", "mcp-protocol-version", "accept", "mcp-session-id"])
        headers[draw(header_names)] = draw(build_header_values())
    if draw(ONE_IN_TEN):
        headers["idempotency-key"] = draw(build_header_values())
    abilities = draw(st.one_of(st.sampled_from(_ABILITIES), build_values())) if draw(ONE_IN_TEN) else None
    case = _build_case(method, params, modern=modern, abilities=abilities, members=members, headers=headers)
    if draw(ONE_IN_TEN):
        cut = draw(st.integers(0, max(0, len(case.body) - 1)))
        return Case(path=case.path, body=case.body[:cut] or b"{", headers=case.headers, request=None)
    return case
