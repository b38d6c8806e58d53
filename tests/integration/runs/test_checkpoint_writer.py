"""Checkpoints in a real database: kept as the rules say, by who holds the call and no one else."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deputize.core.errors import RunOwnershipLost
from deputize.runs.checkpoint_writer import CheckpointScope, CheckpointWriter, encode_state
from deputize.runs.checkpoints import CheckpointChain
from tests.support.gateway_lab import GatewayLab, wait_until
from tests.support.scripted_tools import Gate, set_behaviour
from tests.unit.runs.test_checkpoints import CheckpointTable

pytestmark = pytest.mark.requirement("RES-7")

SEQS = "select seq from deputize.checkpoints where call_id = $1 order by seq"


@asynccontextmanager
async def running_call(lab: GatewayLab, tag: str) -> AsyncIterator[str]:
    """A call that someone holds, for as long as the block lasts."""
    gate = Gate()
    set_behaviour(tag, gate)
    call = asyncio.create_task(lab.call("register", tag, key=tag))
    await gate.began.wait()
    try:
        yield await lab.find_running_call("register")
    finally:
        gate.open.set()
        await call


async def make_checkpoint_writer(
    lab: GatewayLab, call: str, *, epoch: int = 1, interval: float = 600
) -> CheckpointWriter:
    keys = await lab.runtime.keys.load("dev")
    return CheckpointWriter(
        lab.runtime.store, keys, lab.runtime.clock, CheckpointScope(call_id=call, epoch=epoch, interval=interval)
    )


async def fetch_sequence_numbers(lab: GatewayLab, call: str) -> list[int]:
    return [row["seq"] for row in await lab.db.fetch(SEQS, call)]


async def restore_state(lab: GatewayLab, call: str) -> Any:
    heir = await make_checkpoint_writer(lab, call, epoch=2)
    await heir.load()
    return heir.decode_newest_state()


async def test_in_between_only_the_newest_waits_and_is_stored_when_its_time_comes(lossy_lab: GatewayLab) -> None:
    async with running_call(lossy_lab, "interval") as call:
        kept = await make_checkpoint_writer(lossy_lab, call, interval=5)
        for number in range(20):
            await kept.save({"n": number})
        assert await fetch_sequence_numbers(lossy_lab, call) == [0]
        assert (await restore_state(lossy_lab, call), kept.decode_newest_state()) == ({"n": 0}, {"n": 19})

        async def is_stored() -> bool:
            return await fetch_sequence_numbers(lossy_lab, call) == [0, 1]

        await wait_until(is_stored)
        assert await restore_state(lossy_lab, call) == {"n": 19}
        kept.close()


async def test_milestones_and_names_are_stored_at_once_and_put_the_next_micro_off(lossy_lab: GatewayLab) -> None:
    async with running_call(lossy_lab, "milestones") as call:
        kept = await make_checkpoint_writer(lossy_lab, call)
        await kept.save({"n": 0})
        await kept.save({"n": 1}, None, True)
        await kept.save({"n": 2}, "here")
        await kept.save({"n": 3})
        assert await restore_state(lossy_lab, call) == {"n": 2}
        kept.close()
        kinds = await lossy_lab.db.fetch(
            "select kind, name from deputize.checkpoints where call_id = $1 order by seq", call
        )
        assert [tuple(row) for row in kinds] == [("micro", None), ("macro", None), ("named", "here")]


async def test_only_who_holds_the_call_may_save(lossy_lab: GatewayLab) -> None:
    async with running_call(lossy_lab, "fenced") as call:
        zombie = await make_checkpoint_writer(lossy_lab, call, interval=4)
        await zombie.save({"n": 0})
        await zombie.save({"n": 1})
        await lossy_lab.db.execute("update deputize.calls set owner_epoch = 2 where id = $1", call)
        heir = await make_checkpoint_writer(lossy_lab, call, epoch=2)
        await heir.load()
        assert heir.decode_newest_state() == {"n": 0}
        for more in ((None, True), ("here",), ()):
            with pytest.raises(RunOwnershipLost):
                await zombie.save({"n": 2}, *more)
        await heir.save({"n": 10}, None, True)
        await asyncio.sleep(4.5)  # the zombie's interval is over, and nothing is to happen
        assert await restore_state(lossy_lab, call) == {"n": 10}
        assert await fetch_sequence_numbers(lossy_lab, call) == [0, 1]
        zombie.close()
        await lossy_lab.db.execute("update deputize.calls set owner_epoch = 1 where id = $1", call)


async def test_a_takeover_waits_for_a_save_that_has_begun_or_the_save_fails(lossy_lab: GatewayLab) -> None:
    """Whatever the order, what the heir reads first is the last that was saved."""
    async with running_call(lossy_lab, "raced") as call:
        for epoch in range(1, 12):
            kept = await make_checkpoint_writer(lossy_lab, call, epoch=epoch)
            saving = asyncio.create_task(kept.save({"epoch": epoch}, None, True))
            await lossy_lab.db.execute("update deputize.calls set owner_epoch = $2 where id = $1", call, epoch + 1)
            seen = await restore_state(lossy_lab, call)
            saved = await asyncio.gather(saving, return_exceptions=True)
            assert (seen == {"epoch": epoch}) is (list(saved) == [None])
        await lossy_lab.db.execute("update deputize.calls set owner_epoch = 1 where id = $1", call)


async def test_the_database_prunes_as_the_rules_say(lossy_lab: GatewayLab) -> None:
    dice, table = random.Random(3), CheckpointTable()
    async with running_call(lossy_lab, "pruned") as call:
        kept, model = (
            await make_checkpoint_writer(lossy_lab, call, interval=0),
            CheckpointChain(await _load_keys(lossy_lab), call, epoch=1),
        )
        for number in range(60):
            name, macro = dice.choice([(None, False)] * 4 + [(None, True)] * 2 + [("a", False), ("b", False)])
            state = {"rows": list(range(number * 20)), "noise": dice.random()}
            await kept.save(state, name, macro)
            table.save(model, encode_state(state), "named" if name else "macro" if macro else "micro", name)
            assert await fetch_sequence_numbers(lossy_lab, call) == sorted(table.rows)
            assert await restore_state(lossy_lab, call) == state
        kept.close()
        assert len(table.rows) <= 3 + 10 + 2 + 8


async def _load_keys(lab: GatewayLab) -> Any:
    return await lab.runtime.keys.load("dev")


async def test_names_are_few_and_readable(lossy_lab: GatewayLab) -> None:
    async with running_call(lossy_lab, "named") as call:
        kept = await make_checkpoint_writer(lossy_lab, call)
        for name in ("", "x" * 101, "line\nbreak"):
            with pytest.raises(ValueError, match="printable"):
                await kept.save({}, name)
        for number in range(100):
            await kept.save({"n": number}, f"name-{number}")
        with pytest.raises(ValueError, match="at most 100"):
            await kept.save({}, "one more")
        await kept.save({"n": "again"}, "name-7")
        heir = await make_checkpoint_writer(lossy_lab, call)
        await heir.load()
        with pytest.raises(ValueError, match="at most 100"):
            await heir.save({}, "one more")


async def test_a_tool_that_saves_without_declaring_it_fails_where_its_author_sees_it(lossy_lab: GatewayLab) -> None:
    async def save(context: Any) -> dict[str, Any]:
        await context.save({"n": 1})
        return {}

    set_behaviour("undeclared", save)
    outcome = await lossy_lab.call("drop", "undeclared", key="undeclared")
    assert outcome.spec is not None
    assert (outcome.spec.slug, b"does not enable checkpoints" in outcome.body) == ("tool-failed", True)


async def test_the_next_attempt_in_the_same_process_goes_on_too(lossy_lab: GatewayLab) -> None:
    seen: list[Any] = []

    async def behave(context: Any) -> dict[str, Any]:
        seen.append(context.saved_state)
        await context.save({"attempt": context.attempt})
        raise ConnectionError("reset")

    set_behaviour("attempts", behave)
    await lossy_lab.call("register", "attempts", key="attempts")
    set_behaviour("attempts", lambda context: {"value": context.saved_state})
    second = await lossy_lab.call("register", "attempts", key="attempts")
    assert b'{"attempt":1}' in second.body
    assert seen == [None]
