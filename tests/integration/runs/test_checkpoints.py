"""Checkpoints in a real database: kept as the rules say, by who holds the call and nobody else."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deputize.core.errors import TakenOver
from deputize.runs.checkpoints import Chain
from deputize.runs.keeper import Keeper, Place, plain
from tests.integration.lifecycle.lab import Lab, until
from tests.integration.lifecycle.tools import Gate, on
from tests.unit.runs.test_checkpoints import Table

pytestmark = pytest.mark.requirement("RES-7")

SEQS = "select seq from deputize.checkpoints where call_id = $1 order by seq"


@asynccontextmanager
async def running(lab: Lab, tag: str) -> AsyncIterator[str]:
    """A call that somebody holds, for as long as the block lasts."""
    gate = Gate()
    on(tag, gate)
    call = asyncio.create_task(lab.call("register", tag, key=tag))
    await gate.began.wait()
    try:
        yield await lab.running_call("register")
    finally:
        gate.open.set()
        await call


async def keeper(lab: Lab, call: str, *, epoch: int = 1, interval: float = 600) -> Keeper:
    keys = await lab.rooms.keys.load(lab.rooms.store, "dev")
    return Keeper(lab.rooms.store, keys, lab.rooms.clock, Place(call_id=call, epoch=epoch, interval=interval))


async def seqs(lab: Lab, call: str) -> list[int]:
    return [row["seq"] for row in await lab.db.fetch(SEQS, call)]


async def restored(lab: Lab, call: str) -> Any:
    heir = await keeper(lab, call, epoch=2)
    await heir.load()
    return heir.restored()


async def test_in_between_only_the_newest_waits_and_is_stored_when_its_time_comes(depot: Lab) -> None:
    async with running(depot, "interval") as call:
        kept = await keeper(depot, call, interval=0.5)
        for number in range(20):
            await kept.save({"n": number})
        assert await seqs(depot, call) == [0]
        assert (await restored(depot, call), kept.restored()) == ({"n": 0}, {"n": 19})

        async def is_stored() -> bool:
            return await seqs(depot, call) == [0, 1]

        await until(is_stored, 5)
        assert await restored(depot, call) == {"n": 19}
        kept.close()


async def test_milestones_and_names_are_stored_at_once_and_put_the_next_micro_off(depot: Lab) -> None:
    async with running(depot, "milestones") as call:
        kept = await keeper(depot, call)
        await kept.save({"n": 0})
        await kept.save({"n": 1}, None, True)
        await kept.save({"n": 2}, "here")
        await kept.save({"n": 3})
        assert await restored(depot, call) == {"n": 2}
        kept.close()
        kinds = await depot.db.fetch(
            "select kind, name from deputize.checkpoints where call_id = $1 order by seq", call
        )
        assert [tuple(row) for row in kinds] == [("micro", None), ("macro", None), ("named", "here")]


async def test_only_who_holds_the_call_may_save(depot: Lab) -> None:
    async with running(depot, "fenced") as call:
        zombie = await keeper(depot, call, interval=0.3)
        await zombie.save({"n": 0})
        await zombie.save({"n": 1})
        await depot.db.execute("update deputize.calls set owner_epoch = 2 where id = $1", call)
        heir = await keeper(depot, call, epoch=2)
        await heir.load()
        assert heir.restored() == {"n": 0}
        for more in ((None, True), ("here",), ()):
            with pytest.raises(TakenOver):
                await zombie.save({"n": 2}, *more)
        await heir.save({"n": 10}, None, True)
        await asyncio.sleep(0.4)
        assert await restored(depot, call) == {"n": 10}
        assert await seqs(depot, call) == [0, 1]
        zombie.close()
        await depot.db.execute("update deputize.calls set owner_epoch = 1 where id = $1", call)


async def test_a_takeover_waits_for_a_save_that_has_begun_or_the_save_fails(depot: Lab) -> None:
    """Whatever the order, what the heir reads first is the last that was saved."""
    async with running(depot, "raced") as call:
        for epoch in range(1, 12):
            kept = await keeper(depot, call, epoch=epoch)
            saving = asyncio.create_task(kept.save({"epoch": epoch}, None, True))
            await depot.db.execute("update deputize.calls set owner_epoch = $2 where id = $1", call, epoch + 1)
            seen = await restored(depot, call)
            saved = await asyncio.gather(saving, return_exceptions=True)
            assert (seen == {"epoch": epoch}) is (list(saved) == [None])
        await depot.db.execute("update deputize.calls set owner_epoch = 1 where id = $1", call)


async def test_the_database_prunes_as_the_rules_say(depot: Lab) -> None:
    dice, table = random.Random(3), Table()
    async with running(depot, "pruned") as call:
        kept, model = await keeper(depot, call, interval=0), Chain(await _keys(depot), call, epoch=1)
        for number in range(60):
            name, macro = dice.choice([(None, False)] * 4 + [(None, True)] * 2 + [("a", False), ("b", False)])
            state = {"rows": list(range(number * 20)), "noise": dice.random()}
            await kept.save(state, name, macro)
            table.save(model, plain(state), "named" if name else "macro" if macro else "micro", name)
            assert await seqs(depot, call) == sorted(table.rows)
            assert await restored(depot, call) == state
        kept.close()
        assert len(table.rows) <= 3 + 10 + 2 + 8


async def _keys(lab: Lab) -> Any:
    return await lab.rooms.keys.load(lab.rooms.store, "dev")


async def test_names_are_few_and_readable(depot: Lab) -> None:
    async with running(depot, "named") as call:
        kept = await keeper(depot, call)
        for name in ("", "x" * 101, "line\nbreak"):
            with pytest.raises(ValueError, match="printable"):
                await kept.save({}, name)
        for number in range(100):
            await kept.save({"n": number}, f"name-{number}")
        with pytest.raises(ValueError, match="at most 100"):
            await kept.save({}, "one more")
        await kept.save({"n": "again"}, "name-7")
        heir = await keeper(depot, call)
        await heir.load()
        with pytest.raises(ValueError, match="at most 100"):
            await heir.save({}, "one more")


async def test_a_tool_that_saves_without_declaring_it_fails_where_its_author_sees_it(depot: Lab) -> None:
    async def save(context: Any) -> dict[str, Any]:
        await context.save({"n": 1})
        return {}

    on("undeclared", save)
    outcome = await depot.call("drop", "undeclared", key="undeclared")
    assert outcome.face is not None
    assert (outcome.face.slug, b"does not enable checkpoints" in outcome.body) == ("tool-failed", True)


async def test_the_next_attempt_in_the_same_process_goes_on_too(depot: Lab) -> None:
    seen: list[Any] = []

    async def behave(context: Any) -> dict[str, Any]:
        seen.append(context.restored)
        await context.save({"attempt": context.attempt})
        raise ConnectionError("reset")

    on("attempts", behave)
    await depot.call("register", "attempts", key="attempts")
    on("attempts", lambda context: {"value": context.restored})
    second = await depot.call("register", "attempts", key="attempts")
    assert b'{"attempt":1}' in second.body
    assert seen == [None]
