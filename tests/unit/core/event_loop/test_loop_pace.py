"""A long piece of work on the event loop lets others run after each turn."""

import asyncio
from itertools import chain, repeat

from deputize.core.clock import Clock
from deputize.core.event_loop.loop_pace import LoopPace


async def test_others_run_after_a_turn_and_not_within_it() -> None:
    moments = chain((0.0, 0.001), repeat(0.01))
    pace, turns = LoopPace(Clock(monotonic=lambda: next(moments))), list[str]()
    asyncio.get_running_loop().call_soon(turns.append, "other")
    await pace.take_turn()
    turns.append("within")
    await pace.take_turn()
    turns.append("after")
    assert turns == ["within", "other", "after"]
