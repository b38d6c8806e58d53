"""Servers that are programs: started from nothing, asked by many at once, started again, gone without a trace."""

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
from deputize.core.definition import Secret, Told
from deputize.core.errors import ResourceLimit, ToolFailed, UpstreamTimeout, UpstreamUnavailable
from deputize.core.settings import McpServer
from tests.integration.execute.upstreams.conftest import FIXTURE, Shop, reaching

Named = Callable[..., McpServer]
SMALL = str(Path(__file__).with_name("small_server.py"))


@pytest.fixture(params=["of today", "with a handshake"])
def program(request: pytest.FixtureRequest) -> Named:
    options = () if request.param == "of today" else ("--legacy",)

    def named(*more: str, **settings: Any) -> McpServer:
        command = (sys.executable, FIXTURE, *options, *more)
        return McpServer(name="shop", command=command, start_seconds=60, **settings)

    return named


@pytest.fixture
def small() -> Named:
    def named(*more: str, **settings: Any) -> McpServer:
        return McpServer(name="shop", command=(sys.executable, "-S", SMALL, *more), start_seconds=60, **settings)

    return named


def family_of(marker: str) -> list[int]:
    """Every process whose environment carries the marker."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if marker.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


async def gone(marker: str) -> None:
    async with asyncio.timeout(30):
        while family_of(marker):  # noqa: ASYNC110  # the end of somebody else's process is no event of ours
            await asyncio.sleep(0.02)


@pytest.mark.requirement("REG-2")
async def test_a_program_is_looked_at_and_called_like_any_server(program: Named) -> None:
    async with reaching(program()) as upstreams:
        shop = Shop(upstreams)
        found = await shop.discover()
        assert [each.name for each in found.tools][:2] == ["echo", "effect"]
        assert (found.title, found.instructions) == ("fixture", "Be kind to the shop.")
        result = await shop.call("echo", {"text": "hello"}, meta={"dev.deputize/idempotency-key": "k"})
        assert result["content"] == [{"type": "text", "text": "hello"}]
        assert result["structuredContent"]["meta"]["dev.deputize/idempotency-key"] == "k"
        assert result["structuredContent"]["protocol"] == found.protocol
        with pytest.raises(ToolFailed):
            await shop.call("nothing")


async def test_many_calls_at_once_share_one_program(program: Named) -> None:
    async with reaching(program()) as upstreams:
        shop = Shop(upstreams)
        results = await asyncio.gather(*(shop.call("echo", {"text": str(number)}) for number in range(50)))
        assert [result["content"][0]["text"] for result in results] == [str(number) for number in range(50)]
        assert len({result["structuredContent"]["pid"] for result in results}) == 1


async def test_a_program_gets_an_environment_made_from_nothing_and_a_folder_of_its_own(
    program: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "not for programs")
    async with reaching(program(env={"SHOP": "open"})) as upstreams:
        seen = (await Shop(upstreams).call("who"))["structuredContent"]
        assert set(seen["environment"]) <= {"PATH", "LANG", "SHOP", "LC_CTYPE"}
        assert seen["environment"]["SHOP"] == "open"
        folder = Path(seen["cwd"])
        assert folder != Path.cwd()
        assert folder.exists()
    assert not folder.exists()


async def test_each_credential_has_a_program_of_its_own(program: Named) -> None:
    settings = program(credential="vault", secret="shop", secret_env="SHOP_KEY")
    async with reaching(settings) as upstreams:
        shop = Shop(upstreams)
        seen: dict[str, int] = {}
        for value in ("key-of-ana", "key-of-ben", "key-of-ana"):
            result = (await shop.call("who", credential=Secret(value)))["structuredContent"]
            assert result["environment"]["SHOP_KEY"] == value
            assert seen.setdefault(value, result["pid"]) == result["pid"]
        assert len(set(seen.values())) == 2


async def test_progress_and_changes_are_heard(program: Named) -> None:
    told: list[Told] = []
    async with reaching(program()) as upstreams:
        shop = Shop(upstreams)
        before = (await shop.discover()).digests["echo"]
        await shop.call("steps", {"steps": 2}, tell=told.append)
        assert [(each.done, each.total) for each in told] == [(1.0, 2.0), (2.0, 2.0)]
        changed = shop.changed()
        async with asyncio.timeout(30):
            while not changed.is_set():
                await shop.call("change", {"description": "Something else entirely."})
                await asyncio.sleep(0.05)
        assert (await shop.discover()).digests["echo"] != before


async def test_a_call_that_nobody_waits_for_is_canceled_in_the_program(program: Named) -> None:
    async with reaching(program()) as upstreams:
        shop = Shop(upstreams)
        await shop.discover()
        with pytest.raises(UpstreamTimeout) as raised:
            await shop.call("hang", seconds=0.5)
        assert not raised.value.nothing_happened
        assert (await shop.call("canceled"))["structuredContent"]["canceled"] == ["hang"]


async def test_a_program_that_ends_in_mid_call_leaves_open_what_it_did_and_is_started_again(program: Named) -> None:
    async with reaching(program()) as upstreams:
        shop = Shop(upstreams)
        first = (await shop.call("echo"))["structuredContent"]["pid"]
        changed = shop.changed()
        waiting = asyncio.create_task(shop.call("hang"))
        with pytest.raises(UpstreamUnavailable) as raised:
            await shop.call("die")
        assert not raised.value.nothing_happened
        with pytest.raises(UpstreamUnavailable):
            await waiting
        await asyncio.wait_for(changed.wait(), 30)
        assert (await shop.call("echo"))["structuredContent"]["pid"] != first


async def test_a_program_that_ends_again_and_again_is_given_pauses(small: Named) -> None:
    now = [1000.0]
    clock = Clock(monotonic=lambda: now[0])
    async with reaching(small(), clock=clock) as upstreams:
        shop = Shop(upstreams)
        for _ in range(2):
            with pytest.raises(UpstreamUnavailable):
                await shop.call("die")
        with pytest.raises(UpstreamUnavailable) as raised:
            await shop.call("echo")
        assert raised.value.nothing_happened
        assert 0 < (raised.value.retry_after_ms or 0) <= 501
        now[0] += 1.0
        assert (await shop.call("echo"))["content"][0]["text"] == "echo"


async def test_a_program_that_is_not_there_or_not_the_right_one_is_not_run(small: Named) -> None:
    right = hashlib.sha256(Path(sys.executable).read_bytes()).hexdigest()
    async with reaching(small(sha256=right)) as upstreams:
        await Shop(upstreams).discover()
    for settings in (small(sha256="0" * 64), McpServer(name="shop", command=("no-such-program-anywhere",))):
        async with reaching(settings) as upstreams:
            with pytest.raises(UpstreamUnavailable) as raised:
                await Shop(upstreams).call("echo")
            assert raised.value.nothing_happened


async def test_a_program_that_says_nothing_is_given_up_and_leaves_nothing() -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    silent = McpServer(name="shop", command=("sleep", "1000"), start_seconds=1, env={name: value})
    async with reaching(silent) as upstreams:
        with pytest.raises(UpstreamTimeout) as raised:
            await Shop(upstreams).call("effect")
        assert raised.value.nothing_happened
        await gone(marker)


async def test_too_large_a_message_ends_the_program_that_writes_it(program: Named) -> None:
    async with reaching(program()) as upstreams:
        with pytest.raises((UpstreamUnavailable, ResourceLimit)):
            await Shop(upstreams).call("large", {"size": 5_000_000})
        assert (await Shop(upstreams).call("echo", {"text": "on"}))["content"][0]["text"] == "on"


async def test_what_a_program_started_ends_with_it_wherever_it_went(small: Named) -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    async with reaching(small(env={name: value})) as upstreams:
        await Shop(upstreams).call("spawn")
        assert len(family_of(marker)) == 3
    assert family_of(marker) == []


async def test_nothing_is_left_of_a_program_when_the_gateway_is_killed(small: Named) -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    settings = small(env={name: value}).model_dump_json()
    script = (
        "import asyncio, sys\n"
        "from deputize.core.settings import McpServer, Settings\n"
        "from deputize.execute.upstreams.servers import Upstreams\n"
        "async def main():\n"
        "    upstreams = Upstreams(Settings(servers=(McpServer.model_validate_json(sys.argv[1]),)))\n"
        "    call = {'meta': {}, 'credential': None, 'seconds': 60}\n"
        "    await upstreams.call('dev', 'shop', 'spawn', {}, **call)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, settings, stdout=asyncio.subprocess.PIPE
    )
    assert gateway.stdout is not None
    assert await gateway.stdout.readline() == b"ready\n"
    assert len(family_of(marker)) == 3
    gateway.send_signal(signal.SIGKILL)
    await gateway.wait()
    await gone(marker)


async def test_starting_again_and_again_leaves_neither_processes_nor_pipes_behind(small: Named) -> None:
    marker = f"SHOP_MARK={Clock().new_id()}"
    name, _, value = marker.partition("=")
    now = [0.0]
    before = len(os.listdir("/proc/self/fd"))
    async with reaching(small(env={name: value}), clock=Clock(monotonic=lambda: now[0])) as upstreams:
        shop = Shop(upstreams)
        for _ in range(40):
            now[0] += 100.0
            with pytest.raises(UpstreamUnavailable):
                await shop.call("die")
    assert family_of(marker) == []
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_program_that_ends_at_the_first_question_is_asked_in_the_older_way(small: Named) -> None:
    async with reaching(small("--ends-when-probed")) as upstreams:
        assert (await Shop(upstreams).discover()).protocol == "2025-11-25"


async def test_a_program_gets_no_more_memory_than_it_may(small: Named) -> None:
    async with reaching(small(memory_mb=256)) as upstreams:
        with pytest.raises(ToolFailed, match="out of memory"):
            await Shop(upstreams).call("memory")
