"""The official SDK's client at our interface, in both eras, over HTTP and over the pipes of `deputize mcp`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import orjson
import pytest
import pytest_asyncio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, Result

from deputize.core.config_error import ConfigError
from deputize.core.mcp.constants import TASKS_EXTENSION
from deputize.interfaces.cli.client.mcp_bridge import McpBridge
from deputize.interfaces.cli.client.rest_client import GatewayClient
from tests.integration.interfaces.mcp.test_pending import TOOLS
from tests.support import shop_tools
from tests.support.approval_gateway import ApprovalGateway, open_approval_gateway
from tests.support.gateway_internals import get_runtime
from tests.support.gateway_lab import wait_until

PROGRAM = str(Path(sys.executable).with_name("deputize"))
TRANSPORTS = pytest.mark.parametrize("way", ["http", "stdio"])
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApprovalGateway]:
    async with open_approval_gateway(module_database, tmp_path_factory.mktemp("office"), tools=TOOLS) as opened:
        yield opened


@asynccontextmanager
async def open_client(
    approval_gateway: ApprovalGateway, transport_name: str, mode: str, **more: Any
) -> AsyncIterator[Client]:
    token, url = approval_gateway.gateway.token(), approval_gateway.gateway.url
    if transport_name == "stdio":
        program = StdioServerParameters(command=PROGRAM, args=["mcp", "--url", url], env={"DEPUTIZE_TOKEN": token})
        async with Client(stdio_client(program), mode=mode, read_timeout_seconds=60, **more) as client:
            yield client
        return
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=60, **more) as client:
            yield client


def _key_meta(key: str) -> Any:
    return {"dev.deputize/idempotency-key": key}


@TRANSPORTS
@MODES
async def test_a_client_lists_reads_writes_once_and_hears_of_the_end(
    approval_gateway: ApprovalGateway, way: str, mode: str
) -> None:
    async with open_client(approval_gateway, way, mode) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        assert {"calls_get", "shop__get_user", "shop__delete_user"} <= set(names)
        read = await client.call_tool("shop__list_users", {"limit": 2})
        assert (read.structured_content, read.is_error) == ({"result": [0, 1]}, False)

        before, note = len(shop_tools.effects), {"name": f"{way}-{mode}"}
        shop_tools.release_events.setdefault(note["name"], asyncio.Event()).set()
        for _ in range(2):
            wrote = await client.call_tool("shop__note_at_once", note, meta=_key_meta(f"note-{way}-{mode}"))
            assert wrote.structured_content == {"result": note["name"]}
        assert len(shop_tools.effects) == before + 1
        assert (wrote.meta or {})["dev.deputize/replayed"] is True

        asked = await client.call_tool("shop__delete_user", {"id": 60}, meta=_key_meta(f"delete-{way}-{mode}"))
        assert asked.structured_content is not None
        call_id = asked.structured_content["call_id"]
        assert asked.structured_content["status"] == "awaiting_approval"
        answer = await approval_gateway.decide("approve", call_id, token=approval_gateway.sign_token(), reason="seen")
        assert answer.status_code == 200
        told: Any = {"retry_after_ms": 0}
        async with asyncio.timeout(60):
            while "retry_after_ms" in told:
                ended = await client.call_tool("calls_get", {"call_id": call_id, "wait_ms": 5000})
                told = ended.structured_content
        assert told["result"] == {"deleted": 60}


@TRANSPORTS
@MODES
async def test_mistakes_come_as_the_sdk_expects_them(approval_gateway: ApprovalGateway, way: str, mode: str) -> None:
    async with open_client(approval_gateway, way, mode) as client:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("shop__nothing", {})
        assert raised.value.code == -32602
        wrong = await client.call_tool("shop__get_user", {"id": "x"})
        assert wrong.is_error is True


@TRANSPORTS
@MODES
async def test_progress_reaches_the_client_before_the_answer(
    approval_gateway: ApprovalGateway, way: str, mode: str
) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with open_client(approval_gateway, way, mode) as client:
        await client.call_tool("shop__tells", {"name": "x"}, progress_callback=on_progress)

        # The client tells its callback in a task of its own.
        async def has_seen_all() -> bool:
            return len(set(seen)) >= 2

        await wait_until(has_seen_all)
        assert set(seen) == {(1.0, 4.0, "begun"), (3.0, 4.0, "nearly")}


@TRANSPORTS
async def test_a_client_that_opens_addresses_gets_the_outcome_in_one_call(
    approval_gateway: ApprovalGateway, way: str
) -> None:
    opened: list[str] = []

    async def open_and_approve(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert params.mode == "url"
        opened.append(params.url)
        answer = await approval_gateway.decide(
            "approve", params.url.rpartition("/")[2], token=approval_gateway.sign_token(), reason="seen"
        )
        assert answer.status_code == 200, answer.text
        return ElicitResult(action="accept")

    async with open_client(approval_gateway, way, "auto", elicitation_callback=open_and_approve) as client:
        result = await client.call_tool("shop__delete_user", {"id": 61}, meta=_key_meta(f"opens-{way}"))
        assert (result.structured_content, len(opened)) == ({"deleted": 61}, 1)


@TRANSPORTS
async def test_an_older_client_with_url_elicitation_gets_the_url_once(
    approval_gateway: ApprovalGateway, way: str
) -> None:
    async def never(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        raise AssertionError("it is asked by an error, not by a request")

    async with open_client(approval_gateway, way, "legacy", elicitation_callback=never) as client:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("shop__delete_user", {"id": 62}, meta=_key_meta(f"told-{way}"))
        assert raised.value.code == -32042
        data: Any = raised.value.error.data
        ticket = data["elicitations"][0]["url"].rpartition("/")[2]
        await approval_gateway.decide("approve", ticket, token=approval_gateway.sign_token(), reason="seen")
        result = await client.call_tool("shop__delete_user", {"id": 62}, meta=_key_meta(f"told-{way}"))
        assert result.structured_content == {"deleted": 62}


class TaskResult(Result):
    """What a client that knows tasks takes for the answer to a call."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class Tasks(ClientExtension):
    identifier = TASKS_EXTENSION

    def __init__(self, approval_gateway: ApprovalGateway) -> None:
        self.approval_gateway = approval_gateway
        self.task_ids: list[str] = []

    def claims(self) -> list[ResultClaim[TaskResult]]:
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self.resolve_task)]

    async def resolve_task(self, task: TaskResult, context: ClaimContext) -> CallToolResult:
        self.task_ids.append(task.task_id)
        return CallToolResult(content=[], structured_content={"task": task.task_id})


async def test_a_client_that_knows_tasks_is_given_one(approval_gateway: ApprovalGateway) -> None:
    tasks = Tasks(approval_gateway)
    async with open_client(approval_gateway, "http", "auto", extensions=[tasks]) as client:
        result = await client.call_tool("shop__delete_user", {"id": 63}, meta=_key_meta("sdk-task"))
        assert result.structured_content == {"task": tasks.task_ids[0]}


@asynccontextmanager
async def open_other_service(body: bytes) -> AsyncIterator[str]:
    """Some other service: whatever it is asked, it answers with this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d"
        writer.write(head % len(body) + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def test_the_bridge_ends_with_its_input_and_says_in_words_what_is_wrong(
    approval_gateway: ApprovalGateway,
) -> None:
    async def run_bridge(line: bytes, *, url: str, token: str) -> tuple[bytes, str]:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "mcp", "--url", url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, env={"DEPUTIZE_TOKEN": token},
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(line), 240)
        assert process.returncode == 0
        return out, err.decode()

    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    good, url = approval_gateway.gateway.token(), approval_gateway.gateway.url
    assert await run_bridge(ping, url=url, token=good) == (b'{"jsonrpc":"2.0","id":1,"result":{}}\n', "")
    out, err = await run_bridge(ping, url=url, token="no.good.token")
    assert (b'"id":1' in out, "rejects this token" in err) == (True, True)
    out, err = await run_bridge(ping, url="http://127.0.0.1:9", token=good)
    assert (b"does not answer" in out, "check that it is running" in err, "Traceback" in err) == (True, True, False)
    for other in (
        b'{"error":"not found"}',
        b'{"detail":"Not Found"}',
        b"<html>",
        b'{"jsonrpc":"2.0","error":"x","id":1}',
    ):
        async with open_other_service(other) as elsewhere:
            out, err = await run_bridge(ping, url=elsewhere, token=good)
        assert (b'"id":1' in out, b"-32603" in out) == (True, True), other
        assert "does not answer like a Deputize gateway" in err, other
    out, _ = await run_bridge(b"nonsense\n[]\n", url=url, token=good)
    assert out.count(b"-32700") == 2


async def test_the_bridge_speaks_without_a_gateway_connects_to_one_and_announces_other_tools(
    approval_gateway: ApprovalGateway,
) -> None:
    gateway = approval_gateway.gateway
    found: list[GatewayClient] = []

    def find() -> GatewayClient:
        if not found:
            raise ConfigError("No gateway is running for this folder: start one with deputize dev.")
        return found[0]

    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    replies: asyncio.Queue[bytes] = asyncio.Queue()
    bridge = McpBridge(find, replies.put_nowait, lambda _: None, follows_project=True)
    relay = asyncio.create_task(bridge.relay_lines(lines))

    async def read() -> dict[str, Any]:
        message: dict[str, Any] = orjson.loads(await asyncio.wait_for(replies.get(), 60))
        return message

    async def ask(method: str, **params: Any) -> Any:
        lines.put_nowait(orjson.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}))
        while (message := await read()).get("id") != method:
            assert message["method"] == "notifications/tools/list_changed"
        return message["result"]

    async def read_change() -> None:
        while (await read()).get("method") != "notifications/tools/list_changed":
            pass

    info = {"name": "a client", "version": "1"}
    started = await ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info)
    assert "start one with deputize dev" in started["instructions"]
    assert started["capabilities"]["tools"] == {"listChanged": True}
    assert (await ask("tools/list"))["tools"] == []
    refused = await ask("tools/call", name="shop__get_user", arguments={})
    assert (refused["isError"], "deputize dev" in refused["content"][0]["text"]) == (True, True)

    found.append(GatewayClient(url=gateway.url, token=gateway.token()))
    await read_change()
    # Its token is renewed with the next request.
    found[0] = GatewayClient(url=gateway.url, token=gateway.token())
    names = {each["name"] for each in (await ask("tools/list"))["tools"]}
    assert "shop__get_user" in names
    # A tool of the project goes, and comes again.
    assert gateway.in_process is not None
    authority = get_runtime(gateway.in_process).authority
    for removed_tools in ({"shop.get_user": "it was in tools/shop.py"}, {}):
        authority.set_removed_tools("dev", removed_tools)
        await read_change()
    lines.put_nowait(None)
    await relay
