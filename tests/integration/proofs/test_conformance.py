"""The relay changes names and nothing else, and the judge is wrong in neither direction."""

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from proofs.conformance.expected_failures import EXPECTED_FAILURES, ExpectedFailure
from proofs.conformance.judge import judge_scenarios
from proofs.conformance.relay import HeaderFixingRelay, Relay
from proofs.conformance.suite import ScenarioResult, read_results
from proofs.kit.http_client import HttpConnection, HttpResponse

pytestmark = pytest.mark.nightly

LIST = {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "fixture__greet"}, {"name": "calls_get"}]}}


async def send_through_relay(
    body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None, kind: type[Relay] = Relay
) -> tuple[HttpResponse, str, Any]:
    """What came back, and the head and body that reached the other side."""
    reached: list[bytes] = []

    async def answer_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.readuntil(b"\r\n\r\n"))
        length = next(line for line in reached[0].split(b"\r\n") if line.startswith(b"content-length"))
        reached.append(await reader.readexactly(int(length.split(b":")[1])))
        answer = orjson.dumps(LIST)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_request, "127.0.0.1", 0)
    async with server, kind(server.sockets[0].getsockname()[1], "secret", "fixture__", {"greet"}).start() as url:
        line = HttpConnection.for_url(url)
        sent = body if isinstance(body, bytes) else orjson.dumps(body)
        answer = await line.send("POST", "/mcp", headers=headers, body=sent)
        line.close()
    return answer, reached[0].decode().lower(), orjson.loads(reached[1])


def make_call(name: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name}}


async def test_prompts_are_named_as_tools_are() -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": "greet"}}
    _, _, body = await send_through_relay(asked, {"Mcp-Name": "greet"})
    assert body["params"]["name"] == "fixture__greet"
    completing = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "greet", "value": "greet"}}
    _, _, body = await send_through_relay({**asked, "method": "completion/complete", "params": completing})
    assert body["params"] == {**completing, "ref": {"type": "ref/prompt", "name": "fixture__greet"}}
    reading = {"uri": "greet"}
    _, _, body = await send_through_relay({**asked, "method": "resources/read", "params": reading})
    assert body["params"] == reading


async def test_names_get_their_server_on_the_way_in_and_lose_it_on_the_way_out() -> None:
    _, head, body = await send_through_relay(
        make_call("greet"), {"Mcp-Name": "  greet  ", "Authorization": "Bearer other"}
    )
    assert body["params"]["name"] == "fixture__greet"
    assert "mcp-name:   fixture__greet  \r\n" in head
    assert "authorization: bearer secret\r\n" in head
    assert "other" not in head
    answer, _, _ = await send_through_relay({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert [tool["name"] for tool in answer.json()["result"]["tools"]] == ["greet", "calls_get"]


async def test_what_contradicts_itself_does_so_behind_the_relay_too() -> None:
    _, head, body = await send_through_relay(make_call("greet"), {"Mcp-Name": "wrong"})
    assert "mcp-name: wrong\r\n" in head
    assert body["params"]["name"] == "fixture__greet"
    encoded = base64.b64encode(b"greet").decode()
    _, head, body = await send_through_relay(make_call("nobody"), {"Mcp-Name": f"=?base64?{encoded}?="})
    assert f"=?base64?{base64.b64encode(b'fixture__greet').decode()}?=".lower() in head
    assert body["params"]["name"] == "nobody"


async def test_the_relay_of_the_control_makes_headers_agree() -> None:
    _, head, _ = await send_through_relay(
        make_call("greet"), {"Mcp-Name": "wrong", "Mcp-Method": "tools/list"}, HeaderFixingRelay
    )
    assert "mcp-name: fixture__greet\r\n" in head
    assert "mcp-method: tools/call\r\n" in head


def make_results(name: str, *failures: str) -> dict[str, ScenarioResult]:
    return {name: ScenarioResult(scenario=name, passed_count=1, failures=dict.fromkeys(failures, "because"))}


@pytest.mark.parametrize(
    ("found", "expected", "wrong"),
    [
        (make_results("a"), None, False),
        (make_results("a", "x"), None, True),
        (make_results("a"), ExpectedFailure(reason="r", checks=frozenset({"x"})), True),
        (make_results("a", "y"), ExpectedFailure(reason="r", checks=frozenset({"x"})), True),
        (make_results("a", "x"), ExpectedFailure(reason="r", checks=frozenset({"x"})), False),
        (make_results("a", "x", "y"), ExpectedFailure(reason="r", checks=frozenset({"x"})), True),
        (make_results("a", "y"), ExpectedFailure(reason="r", checks=frozenset({"x", "y"})), True),
        ({}, None, True),
        ({}, ExpectedFailure(reason="r", checks=frozenset({"x"})), True),
    ],
)
def test_a_list_of_reasons_is_wrong_in_either_direction(
    found: dict[str, ScenarioResult], expected: ExpectedFailure | None, wrong: bool
) -> None:
    judged = judge_scenarios("server", ["a"], found, {} if expected is None else {"a": expected})
    assert bool(judged.faults) is wrong
    assert judged.passed_count + judged.expected_failure_count + len(judged.faults) == 1


def test_results_are_read_by_the_longest_name_that_fits_and_warnings_are_failures(tmp_path: Path) -> None:
    for name, status in (("server-tools-list-2026-01-01T00", "SUCCESS"), ("server-tools-2026-01-01T00", "WARNING")):
        (tmp_path / name).mkdir()
        checks = [{"id": "c", "status": status, "description": "d"}, {"id": "i", "status": "INFO"}]
        (tmp_path / name / "checks.json").write_text(json.dumps(checks))
    found = read_results(tmp_path, "server", ["tools", "tools-list"])
    assert found["tools-list"] == ScenarioResult(scenario="tools-list", passed_count=1, failures={})
    assert found["tools"] == ScenarioResult(scenario="tools", passed_count=0, failures={"c": "d"})


def test_every_reason_is_a_sentence_and_names_its_checks() -> None:
    for expected in EXPECTED_FAILURES.values():
        for name, each in expected.items():
            assert each.reason.endswith("."), name
            assert each.checks, name
