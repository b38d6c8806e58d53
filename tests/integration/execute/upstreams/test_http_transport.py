"""Test servers of the official SDK over HTTP in both protocol eras: discovery, calls, changes, cancellation, loss."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deputize.core.contract.tools import Secret, ToolProgress
from deputize.core.errors import (
    ResourceLimitExceeded,
    ToolFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.settings import McpServerSettings
from tests.integration.execute.upstreams.conftest import ServerProcess, ShopServer, open_upstreams, run_server

SettingsFactory = Callable[..., McpServerSettings]


@pytest.mark.requirement("REG-2")
async def test_every_page_of_what_a_server_declares_is_found(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process)) as upstreams:
        found = await ShopServer(upstreams).discover()
        names = [each.name for each in found.tools]
        assert names[:3] == ["echo", "effect", "fail"]
        assert len(names) == len(set(names)) > 8
        assert found.instructions == "Be kind to the shop."
        assert (found.title, found.version) == ("fixture", "7")
        assert upstreams.get_tool_digests("dev", "shop") == found.digests


async def test_a_call_arrives_with_its_meta_and_its_result_comes_back_as_it_was_sent(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process)) as upstreams:
        result = await ShopServer(upstreams).call(
            "echo", {"text": "grüße"}, meta={"dev.deputize/idempotency-key": "k-1"}
        )
        assert result["content"] == [{"type": "text", "text": "grüße"}]
        assert result["structuredContent"]["meta"]["dev.deputize/idempotency-key"] == "k-1"


async def test_each_server_is_spoken_to_in_its_own_era(http_server: SettingsFactory) -> None:
    for options, protocol in (((), "2026-07-28"), (("--legacy",), "2025-11-25")):
        with run_server(*options) as server:
            async with open_upstreams(http_server(server)) as upstreams:
                result = await ShopServer(upstreams).call("echo")
                assert result["structuredContent"]["protocol"] == protocol


async def test_progress_of_a_tool_is_forwarded(server_process: ServerProcess, http_server: SettingsFactory) -> None:
    told: list[ToolProgress] = []
    async with open_upstreams(http_server(server_process)) as upstreams:
        result = await ShopServer(upstreams).call("steps", {"steps": 3}, report_progress=told.append)
        assert result["content"][0]["text"] == "done"
    # A server that answers with plain JSON cannot report progress.
    assert told in ([], [ToolProgress(current=n + 1.0, total=3.0, message=f"step {n + 1}") for n in range(3)])


async def test_progress_is_reported_by_servers_of_both_protocol_eras(http_server: SettingsFactory) -> None:
    for options in ((), ("--legacy",)):
        told: list[ToolProgress] = []
        with run_server(*options) as server:
            async with open_upstreams(http_server(server)) as upstreams:
                await ShopServer(upstreams).call("steps", {"steps": 2}, report_progress=told.append)
        assert [each.current for each in told] == [1.0, 2.0], options


async def test_a_tool_that_says_it_failed_is_a_result_like_any_other(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process)) as upstreams:
        result = await ShopServer(upstreams).call("fail")
        assert result["isError"] is True
        assert result["content"][0]["text"] == "the shop is closed"


async def test_a_tool_that_is_not_there_fails_by_the_servers_word(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process)) as upstreams:
        with pytest.raises(ToolFailed):
            await ShopServer(upstreams).call("nothing")


async def test_a_credential_goes_with_its_call_and_stays_nowhere(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process, header="X-Key")) as upstreams:
        shop = ShopServer(upstreams)
        for value in ("first-key", "second-key", "first-key"):
            secret = Secret(value)
            result = await shop.call("who", credential=secret)
            secret.close()
            assert result["structuredContent"]["headers"]["x-key"] == value
        assert "x-key" not in (await shop.call("who"))["structuredContent"]["headers"]
        assert "first-key" not in _dump_object(upstreams)


async def test_in_authorization_a_credential_is_a_bearer_token(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process)) as upstreams:
        result = await ShopServer(upstreams).call("who", credential=Secret("abc"))
        assert result["structuredContent"]["headers"]["authorization"] == "Bearer abc"


async def test_arguments_that_the_schema_wants_in_headers_are_repeated_there(http_server: SettingsFactory) -> None:
    with run_server() as server:
        async with open_upstreams(http_server(server)) as upstreams:
            shop = ShopServer(upstreams)
            await shop.discover()
            for region in ("eu-1", "süd", " edge "):
                assert (await shop.call("echo_region", {"region": region}))["content"][0]["text"] == region


async def test_many_calls_at_once_share_few_connections(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process)) as upstreams:
        shop = ShopServer(upstreams)
        texts = [str(number) for number in range(60)]
        results = await asyncio.gather(*(shop.call("echo", {"text": text}) for text in texts))
        assert [result["content"][0]["text"] for result in results] == texts


async def test_a_call_that_nobody_waits_for_is_canceled_at_the_server(http_server: SettingsFactory) -> None:
    for options in ((), ("--legacy",)):
        with run_server(*options) as server:
            async with open_upstreams(http_server(server)) as upstreams:
                shop = ShopServer(upstreams)
                await shop.discover()
                with pytest.raises(UpstreamTimeout) as raised:
                    await shop.call("hang", seconds=5)
                assert not raised.value.nothing_happened
                # It answers once the call was canceled.
                assert (await shop.call("list_canceled"))["structuredContent"]["canceled"] == ["hang"]


async def test_what_a_server_asks_back_is_not_offered(http_server: SettingsFactory) -> None:
    with run_server("--legacy") as server:
        async with open_upstreams(http_server(server)) as upstreams:
            result = await ShopServer(upstreams).call("asks_back")
            assert result["content"][0]["text"] == "-32601 Method not found"


async def test_a_server_that_dies_in_mid_call_leaves_open_what_it_did(http_server: SettingsFactory) -> None:
    for options in ((), ("--legacy",)):
        with run_server(*options) as server:
            async with open_upstreams(http_server(server)) as upstreams:
                shop = ShopServer(upstreams)
                await shop.discover()
                with pytest.raises(UpstreamUnavailable) as raised:
                    await shop.call("die")
                assert not raised.value.nothing_happened
                server.process.wait()
                with pytest.raises(UpstreamUnavailable) as raised:
                    await shop.call("effect")
                assert raised.value.nothing_happened


async def test_a_server_that_forgot_its_sessions_is_asked_again_and_acts_once(http_server: SettingsFactory) -> None:
    with run_server("--legacy") as first:
        async with open_upstreams(http_server(first)) as upstreams:
            shop = ShopServer(upstreams)
            await shop.call("effect")
            first.process.kill()
            first.process.wait()
            with run_server("--legacy", "--port", str(first.port)):
                result = await shop.call("effect")
                assert result["structuredContent"]["effects"] == 1
                assert (await shop.call("effect"))["structuredContent"]["effects"] == 2


async def test_a_server_may_come_back_in_another_era(http_server: SettingsFactory) -> None:
    with run_server() as first:
        async with open_upstreams(http_server(first)) as upstreams:
            shop = ShopServer(upstreams)
            assert (await shop.call("echo"))["structuredContent"]["protocol"] == "2026-07-28"
            for options, protocol in ((("--legacy",), "2025-11-25"), ((), "2026-07-28")):
                first.process.kill()
                first.process.wait()
                with run_server("--port", str(first.port), *options) as again:
                    await shop.discover()
                    assert (await shop.call("echo"))["structuredContent"]["protocol"] == protocol
                    first.process = again.process


async def test_a_server_that_says_its_tools_changed_is_heard(http_server: SettingsFactory) -> None:
    for options in ((), ("--legacy",)):
        with run_server(*options) as server:
            async with open_upstreams(http_server(server)) as upstreams:
                shop = ShopServer(upstreams)
                before = (await shop.discover()).digests["echo"]
                changed = shop.watch_changes()
                async with asyncio.timeout(90):
                    # The change stream may not be open yet when the first change happens.
                    while not changed.is_set():
                        await shop.call("change", {"description": "Something else entirely."})
                        await asyncio.sleep(0.05)
                assert (await shop.discover()).digests["echo"] != before


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(
    server_process: ServerProcess, http_server: SettingsFactory
) -> None:
    async with open_upstreams(http_server(server_process)) as upstreams:
        with pytest.raises(ResourceLimitExceeded):
            await ShopServer(upstreams).call("large", {"size": 5_000_000})
        assert (await ShopServer(upstreams).call("echo", {"text": "on"}))["content"][0]["text"] == "on"


def _dump_object(root: Any) -> str:
    """Collect everything that an object refers to, as text."""
    seen: set[int] = set()
    parts: list[str] = []
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or len(seen) > 100_000:
            continue
        seen.add(id(each))
        if isinstance(each, str | bytes):
            parts.append(str(each))
        elif isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif type(each).__module__.startswith("deputize"):
            names = getattr(each, "__slots__", ()) or vars(each)
            waiting += [getattr(each, name, None) for name in names]
    return " ".join(parts)
