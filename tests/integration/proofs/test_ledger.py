"""The effect ledger counts what really happened, kills where it is told to, and forgets nothing."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import httpx2
import pytest

from proofs.kit.companions import LedgerHandle, start_ledger
from proofs.kit.ledger import Book, EffectRequest
from proofs.kit.world import World

CALLER = """
import sys, urllib.request
asked = urllib.request.Request(sys.argv[1] + "/effect", sys.argv[2].encode())
urllib.request.urlopen(asked).read()
print("answered", flush=True)
"""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as world:
        yield world


@pytest.fixture
async def ledger(world: World) -> LedgerHandle:
    return await start_ledger(world)


async def test_the_same_key_happens_twice_unless_it_is_deduplicated(ledger: LedgerHandle) -> None:
    assert [await ledger.effect("a"), await ledger.effect("a")] == [1, 2]
    assert [await ledger.effect("b", dedupe=True), await ledger.effect("b", dedupe=True)] == [3, 3]
    assert [effect.key for effect in await ledger.effects()] == ["a", "a", "b"]
    assert await ledger.attempts() == {"a": 2, "b": 2}
    assert (await ledger.status("b")).sequences == (3,)
    assert not (await ledger.status("c")).happened


async def test_racers_for_one_deduplicated_key_make_one_effect(ledger: LedgerHandle) -> None:
    answers = await asyncio.gather(*(ledger.effect("k", dedupe=True, delay_ms=20) for _ in range(10)))
    assert set(answers) == {1}
    assert await ledger.attempts() == {"k": 10}


@pytest.mark.parametrize(("point", "happened"), [("before_effect", False), ("after_effect", True)])
async def test_the_caller_is_killed_around_the_effect_once(
    world: World, ledger: LedgerHandle, point: Literal["before_effect", "after_effect"], happened: bool
) -> None:
    bystander = await world.start("bystander", [sys.executable, "-c", "import time; time.sleep(60)"])
    body = '{"key": "k", "tool": "pay", "call": "c1", "delay_ms": 300}'
    caller = await world.start("caller", [sys.executable, "-c", CALLER, ledger.url, body])
    await ledger.arm(point, caller.pid, {"tool": "pay"})
    await ledger.effect("other", tool="look")
    assert await caller.gone() == -9
    assert "answered" not in caller.log.read_text()
    assert await ledger.fired() == 1
    assert (await ledger.status("k")).happened is happened
    assert (await ledger.status("k")).attempts == 1
    await ledger.effect("k", tool="pay")
    assert bystander.alive


async def test_an_effect_under_way_happens_although_its_caller_is_killed(world: World, ledger: LedgerHandle) -> None:
    body = '{"key": "k", "tool": "pay", "call": "c1", "delay_ms": 500}'
    caller = await world.start("caller", [sys.executable, "-c", CALLER, ledger.url, body])
    await ledger.arm("during_effect", caller.pid, {"call": "c1"})
    await ledger.effect("other", tool="look")
    assert await caller.gone() == -9
    assert not (await ledger.status("k")).happened
    await ledger.effect("later", delay_ms=600)
    assert (await ledger.status("k")).sequences == (2,)


async def test_effects_and_attempts_survive_the_ledgers_own_death(ledger: LedgerHandle) -> None:
    await ledger.effect("a", dedupe=True)
    await ledger.effect("a", dedupe=True)
    await ledger.restart()
    assert await ledger.effect("a", dedupe=True) == 1
    assert await ledger.attempts() == {"a": 3}


async def test_a_request_it_does_not_understand_is_refused(ledger: LedgerHandle) -> None:
    async with httpx2.AsyncClient(base_url=ledger.url, trust_env=False) as client:
        assert (await client.post("/effect", json={"key": "a"})).status_code == 422
        assert (await client.get("/nowhere")).status_code == 404


def test_a_line_cut_short_by_a_crash_did_not_happen(tmp_path: Path) -> None:
    file = tmp_path / "book.jsonl"
    Book(file).add(EffectRequest(key="a", tool="t", call="c"))
    with file.open("ab") as torn:
        torn.write(b'{"sequence": 2, "key": "b"')
    reopened = Book(file)
    assert [effect.key for effect in reopened.effects] == ["a"]
    reopened.add(EffectRequest(key="c", tool="t", call="c"))
    assert [effect.key for effect in Book(file).effects] == ["a", "c"]
