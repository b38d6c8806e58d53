"""The effect ledger counts what really happened, kills where it is told to, and forgets nothing."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import httpx2
import pytest

from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.ledger import EffectLog, EffectRequest
from proofs.kit.sandbox import Sandbox

pytestmark = pytest.mark.nightly

CALLER = """
import pathlib, sys, time, urllib.request
while not pathlib.Path(sys.argv[3]).exists():
    time.sleep(0.01)
asked = urllib.request.Request(sys.argv[1] + "/effect", sys.argv[2].encode())
urllib.request.urlopen(asked).read()
print("answered", flush=True)
"""


@pytest.fixture
async def world() -> AsyncIterator[Sandbox]:
    async with Sandbox() as world:
        yield world


@pytest.fixture
async def ledger(world: Sandbox) -> LedgerHandle:
    return await start_ledger(world)


async def test_the_same_key_happens_twice_unless_it_is_deduplicated(ledger: LedgerHandle) -> None:
    assert [await ledger.request_effect("a"), await ledger.request_effect("a")] == [1, 2]
    assert [await ledger.request_effect("b", dedupe=True), await ledger.request_effect("b", dedupe=True)] == [3, 3]
    assert [effect.key for effect in await ledger.list_effects()] == ["a", "a", "b"]
    assert await ledger.count_attempts() == {"a": 2, "b": 2}
    assert (await ledger.get_status("b")).sequences == (3,)
    assert not (await ledger.get_status("c")).has_happened


async def test_racers_for_one_deduplicated_key_make_one_effect(ledger: LedgerHandle) -> None:
    answers = await asyncio.gather(*(ledger.request_effect("k", dedupe=True, delay_ms=20) for _ in range(10)))
    assert set(answers) == {1}
    assert await ledger.count_attempts() == {"k": 10}


@pytest.mark.parametrize(("point", "happened"), [("before_effect", False), ("after_effect", True)])
async def test_the_caller_is_killed_around_the_effect_once(
    world: Sandbox,
    ledger: LedgerHandle,
    tmp_path: Path,
    point: Literal["before_effect", "after_effect"],
    happened: bool,
) -> None:
    armed = tmp_path / "armed"
    bystander = await world.start_process("bystander", [sys.executable, "-c", "import time; time.sleep(60)"])
    body = '{"key": "k", "tool": "pay", "call": "c1"}'
    caller = await world.start_process("caller", [sys.executable, "-c", CALLER, ledger.url, body, str(armed)])
    await ledger.arm_kill(point, caller.pid, {"tool": "pay"})
    await ledger.request_effect("other", tool="look")
    armed.touch()
    assert await caller.wait_for_exit() == -9
    assert "answered" not in caller.log.read_text()
    assert await ledger.count_fired_kills() == 1
    assert (await ledger.get_status("k")).has_happened is happened
    assert (await ledger.get_status("k")).attempts == 1
    await ledger.request_effect("k", tool="pay")
    assert bystander.is_alive


async def test_an_effect_under_way_happens_although_its_caller_is_killed(
    world: Sandbox, ledger: LedgerHandle, tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    body = '{"key": "k", "tool": "pay", "call": "c1", "delay_ms": 4000}'
    caller = await world.start_process("caller", [sys.executable, "-c", CALLER, ledger.url, body, str(armed)])
    await ledger.arm_kill("during_effect", caller.pid, {"call": "c1"})
    await ledger.request_effect("other", tool="look")
    armed.touch()
    assert await caller.wait_for_exit() == -9
    assert not (await ledger.get_status("k")).has_happened
    await ledger.request_effect("later", delay_ms=4100)
    assert (await ledger.get_status("k")).sequences == (2,)


async def test_effects_and_attempts_survive_the_ledgers_own_death(ledger: LedgerHandle) -> None:
    await ledger.request_effect("a", dedupe=True)
    await ledger.request_effect("a", dedupe=True)
    await ledger.restart()
    assert await ledger.request_effect("a", dedupe=True) == 1
    assert await ledger.count_attempts() == {"a": 3}


async def test_a_request_it_does_not_understand_is_refused(ledger: LedgerHandle) -> None:
    async with httpx2.AsyncClient(base_url=ledger.url, trust_env=False, timeout=60) as client:
        assert (await client.post("/effect", json={"key": "a"})).status_code == 422
        assert (await client.get("/nowhere")).status_code == 404


def test_a_line_cut_short_by_a_crash_did_not_happen(tmp_path: Path) -> None:
    file = tmp_path / "book.jsonl"
    EffectLog(file).append_effect(EffectRequest(key="a", tool="t", call="c"))
    with file.open("ab") as torn:
        torn.write(b'{"sequence": 2, "key": "b"')
    reopened = EffectLog(file)
    assert [effect.key for effect in reopened.effects] == ["a"]
    reopened.append_effect(EffectRequest(key="c", tool="t", call="c"))
    assert [effect.key for effect in EffectLog(file).effects] == ["a", "c"]
