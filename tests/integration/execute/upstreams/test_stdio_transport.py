"""Test server processes: clean environment, concurrent requests, restarts, and no processes left behind."""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deputize.core.clock import Clock
from deputize.core.contract.tools import Secret, ToolProgress
from deputize.core.errors import ResourceLimitExceeded, ToolFailed, UpstreamTimeout, UpstreamUnavailable
from deputize.core.settings import McpServerSettings
from tests.integration.execute.upstreams.conftest import SDK_SERVER, ShopServer, open_upstreams

SettingsFactory = Callable[..., McpServerSettings]
SMALL_SERVER = str(Path(__file__).with_name("small_stdio_server.py"))


@pytest.fixture(params=["of today", "with a handshake"])
def stdio_server(request: pytest.FixtureRequest) -> SettingsFactory:
    options = () if request.param == "of today" else ("--legacy",)

    def make_settings(*more: str, **settings: Any) -> McpServerSettings:
        command = (sys.executable, SDK_SERVER, *options, *more)
        return McpServerSettings(name="shop", command=command, start_seconds=60, sandbox=False, **settings)

    return make_settings


@pytest.fixture
def small_server() -> SettingsFactory:
    def make_settings(*more: str, **settings: Any) -> McpServerSettings:
        return McpServerSettings(
            name="shop",
            command=(sys.executable, "-S", SMALL_SERVER, *more),
            start_seconds=60,
            sandbox=False,
            **settings,
        )

    return make_settings


def find_marked_pids(marker: str) -> list[int]:
    """List every process whose environment has the marker. A process that is executing a program has none just then."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if marker.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


async def wait_until_there(marker: str, number: int) -> None:
    async with asyncio.timeout(90):
        while len(find_marked_pids(marker)) != number:  # noqa: ASYNC110  # somebody else's exec is no event of ours
            await asyncio.sleep(0.02)


async def wait_until_gone(marker: str) -> None:
    async with asyncio.timeout(90):
        while find_marked_pids(marker):  # noqa: ASYNC110  # the end of somebody else's process is no event of ours
            await asyncio.sleep(0.02)


@pytest.mark.requirement("REG-2")
async def test_a_stdio_server_is_probed_and_called_like_any_server(stdio_server: SettingsFactory) -> None:
    async with open_upstreams(stdio_server()) as upstreams:
        shop = ShopServer(upstreams)
        found = await shop.discover()
        assert [each.name for each in found.tools][:2] == ["echo", "effect"]
        assert (found.title, found.instructions) == ("fixture", "Be kind to the shop.")
        result = await shop.call("echo", {"text": "hello"}, meta={"dev.deputize/idempotency-key": "k"})
        assert result["content"] == [{"type": "text", "text": "hello"}]
        assert result["structuredContent"]["meta"]["dev.deputize/idempotency-key"] == "k"
        assert result["structuredContent"]["protocol"] == found.protocol
        with pytest.raises(ToolFailed):
            await shop.call("nothing")


async def test_many_calls_at_once_share_one_program(stdio_server: SettingsFactory) -> None:
    async with open_upstreams(stdio_server()) as upstreams:
        shop = ShopServer(upstreams)
        results = await asyncio.gather(*(shop.call("echo", {"text": str(number)}) for number in range(50)))
        assert [result["content"][0]["text"] for result in results] == [str(number) for number in range(50)]
        assert len({result["structuredContent"]["pid"] for result in results}) == 1


async def test_a_program_gets_an_environment_made_from_nothing_and_a_folder_of_its_own(
    stdio_server: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "not for programs")
    async with open_upstreams(stdio_server(env={"SHOP": "open"})) as upstreams:
        seen = (await ShopServer(upstreams).call("who"))["structuredContent"]
        assert set(seen["environment"]) <= {"PATH", "LANG", "SHOP", "LC_CTYPE"}
        assert seen["environment"]["SHOP"] == "open"
        folder = Path(seen["cwd"])
        assert folder != Path.cwd()
        assert folder.exists()
    assert not folder.exists()


async def test_each_credential_has_a_program_of_its_own(stdio_server: SettingsFactory) -> None:
    settings = stdio_server(credential="vault", secret="shop", secret_env="SHOP_KEY")
    async with open_upstreams(settings) as upstreams:
        shop = ShopServer(upstreams)
        seen: dict[str, int] = {}
        for value in ("key-of-ana", "key-of-ben", "key-of-ana"):
            result = (await shop.call("who", credential=Secret(value)))["structuredContent"]
            assert result["environment"]["SHOP_KEY"] == value
            assert seen.setdefault(value, result["pid"]) == result["pid"]
        assert len(set(seen.values())) == 2


async def test_progress_and_changes_are_heard(stdio_server: SettingsFactory) -> None:
    told: list[ToolProgress] = []
    async with open_upstreams(stdio_server()) as upstreams:
        shop = ShopServer(upstreams)
        before = (await shop.discover()).digests["echo"]
        await shop.call("steps", {"steps": 2}, report_progress=told.append)
        assert [(each.current, each.total) for each in told] == [(1.0, 2.0), (2.0, 2.0)]
        changed = shop.watch_changes()
        async with asyncio.timeout(90):
            while not changed.is_set():
                await shop.call("change", {"description": "Something else entirely."})
                await asyncio.sleep(0.05)
        assert (await shop.discover()).digests["echo"] != before


async def test_a_call_that_nobody_waits_for_is_canceled_in_the_program(stdio_server: SettingsFactory) -> None:
    async with open_upstreams(stdio_server()) as upstreams:
        shop = ShopServer(upstreams)
        await shop.discover()
        with pytest.raises(UpstreamTimeout) as raised:
            await shop.call("hang", seconds=5)
        assert not raised.value.nothing_happened
        assert (await shop.call("list_canceled"))["structuredContent"]["canceled"] == ["hang"]


async def test_a_program_that_ends_in_mid_call_leaves_open_what_it_did_and_is_started_again(
    stdio_server: SettingsFactory,
) -> None:
    async with open_upstreams(stdio_server()) as upstreams:
        shop = ShopServer(upstreams)
        first = (await shop.call("echo"))["structuredContent"]["pid"]
        changed = shop.watch_changes()
        waiting = asyncio.create_task(shop.call("hang"))
        await shop.call("wait_for_hang")
        with pytest.raises(UpstreamUnavailable) as raised:
            await shop.call("die")
        assert not raised.value.nothing_happened
        with pytest.raises(UpstreamUnavailable):
            await waiting
        await asyncio.wait_for(changed.wait(), 60)
        assert (await shop.call("echo"))["structuredContent"]["pid"] != first


async def test_a_program_that_ends_again_and_again_is_given_pauses(small_server: SettingsFactory) -> None:
    now = [1000.0]
    clock = Clock(monotonic=lambda: now[0])
    async with open_upstreams(small_server(), clock=clock) as upstreams:
        shop = ShopServer(upstreams)
        for _ in range(2):
            with pytest.raises(UpstreamUnavailable):
                await shop.call("die")
        with pytest.raises(UpstreamUnavailable) as raised:
            await shop.call("echo")
        assert raised.value.nothing_happened
        assert 0 < (raised.value.retry_after_ms or 0) <= 501
        now[0] += 1.0
        assert (await shop.call("echo"))["content"][0]["text"] == "echo"


async def test_a_program_that_is_not_there_or_not_the_right_one_is_not_run(small_server: SettingsFactory) -> None:
    right = hashlib.sha256(Path(sys.executable).read_bytes()).hexdigest()
    async with open_upstreams(small_server(sha256=right, accept_risk="unpinned")) as upstreams:
        await ShopServer(upstreams).discover()
    for settings in (
        small_server(sha256="0" * 64),
        McpServerSettings(name="shop", command=("no-such-program-anywhere",), sandbox=False),
    ):
        async with open_upstreams(settings) as upstreams:
            with pytest.raises(UpstreamUnavailable) as raised:
                await ShopServer(upstreams).call("echo")
            assert raised.value.nothing_happened


async def test_a_program_that_says_nothing_is_given_up_and_leaves_nothing() -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    silent = McpServerSettings(
        name="shop", command=("sleep", "1000"), start_seconds=1, sandbox=False, env={name: value}
    )
    async with open_upstreams(silent) as upstreams:
        with pytest.raises(UpstreamTimeout) as raised:
            await ShopServer(upstreams).call("effect")
        assert raised.value.nothing_happened
        await wait_until_gone(marker)


async def test_a_launcher_has_time_of_its_own_to_download_the_program(
    tmp_path: Path, small_server: SettingsFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = tmp_path / "npx"
    # Longer than the time to start: at first it downloads.
    launcher.write_text('#!/bin/sh\n[ -e "$0.done" ] || { sleep 2; touch "$0.done"; }\nexec "$@"\n')
    launcher.chmod(0o755)
    settings = small_server()
    slow = settings.model_copy(update={"command": (str(launcher), *settings.command), "start_seconds": 1.0})
    async with open_upstreams(slow) as upstreams:
        shop = ShopServer(upstreams)
        assert upstreams.get_start_seconds("dev", slow) > 60
        assert (await shop.call("echo"))["content"][0]["text"] == "echo"
        await shop.discover()
        assert upstreams.get_start_seconds("dev", slow) == 1.0
    assert "server_may_download" in capsys.readouterr().out


async def test_too_large_a_message_ends_the_program_that_writes_it(stdio_server: SettingsFactory) -> None:
    async with open_upstreams(stdio_server()) as upstreams:
        with pytest.raises((UpstreamUnavailable, ResourceLimitExceeded)):
            await ShopServer(upstreams).call("large", {"size": 5_000_000})
        assert (await ShopServer(upstreams).call("echo", {"text": "on"}))["content"][0]["text"] == "on"


async def test_what_a_program_started_ends_with_it_wherever_it_went(small_server: SettingsFactory) -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    async with open_upstreams(small_server(env={name: value})) as upstreams:
        await ShopServer(upstreams).call("spawn")
        await wait_until_there(marker, 3)
    await wait_until_gone(marker)


async def test_nothing_is_left_of_a_program_when_the_gateway_is_killed(small_server: SettingsFactory) -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    settings = small_server(env={name: value}).model_dump_json()
    script = (
        "import asyncio, sys\n"
        "from deputize.core.settings import McpServerSettings, Settings\n"
        "from deputize.execute.upstreams.server_pool import UpstreamPool\n"
        "async def main():\n"
        "    upstreams = UpstreamPool(Settings(servers=(McpServerSettings.model_validate_json(sys.argv[1]),)))\n"
        "    call = {'meta': {}, 'credential': None, 'seconds': 60}\n"
        "    await upstreams.call_tool('dev', 'shop', 'spawn', {}, **call)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, settings, stdout=asyncio.subprocess.PIPE
    )
    assert gateway.stdout is not None
    assert await gateway.stdout.readline() == b"ready\n"
    await wait_until_there(marker, 3)
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()
    await wait_until_gone(marker)


async def test_starting_again_and_again_leaves_neither_processes_nor_pipes_behind(
    small_server: SettingsFactory,
) -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    now = [0.0]
    before = len(os.listdir("/proc/self/fd"))
    async with open_upstreams(small_server(env={name: value}), clock=Clock(monotonic=lambda: now[0])) as upstreams:
        shop = ShopServer(upstreams)
        for _ in range(40):
            now[0] += 100.0
            with pytest.raises(UpstreamUnavailable):
                await shop.call("die")
    await wait_until_gone(marker)
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_program_that_ends_at_the_first_question_is_asked_in_the_older_way(
    small_server: SettingsFactory,
) -> None:
    async with open_upstreams(small_server("--ends-when-probed")) as upstreams:
        assert (await ShopServer(upstreams).discover()).protocol == "2025-11-25"


async def test_a_program_gets_no_more_memory_than_it_may(small_server: SettingsFactory) -> None:
    async with open_upstreams(small_server(memory_mb=256)) as upstreams:
        with pytest.raises(ToolFailed, match="out of memory"):
            await ShopServer(upstreams).call("memory")
