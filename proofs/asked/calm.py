"""How soon a call goes on once people said yes, while nothing else goes on: from the answer to the effect's start."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from proofs.asked.house import House
from proofs.asked.people import APPROVERS
from proofs.asked.stories import Stories

PREFIX = "calm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Calm:
    waits_ms: Sequence[float]

    def quantile(self, share: float) -> float:
        ordered = sorted(self.waits_ms)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def measured(house: House, stories: Stories, count: int) -> Calm:
    """One after the other, at no particular moment of a worker's round."""
    for number in range(count):
        tale = stories.begun(f"{PREFIX}-{number}", "approved")
        tale.tool, tale.delay_ms = "asked.book", 0
        stories.tales.append(tale)
        await stories.talk.ask(tale)
        await asyncio.sleep(house.choose.uniform(0.05, 0.25))
        await stories.talk.approve(tale, house.choose.choice(APPROVERS), gate=house.gates[0])
        await house.database.until("select state = 'succeeded' from deputize.calls where id = $1", tale.call)
    happened = {effect.call: effect.at for effect in await house.ledger.effects()}
    yes = {tale.label: heard.at for tale in stories.tales for heard in tale.heard if tale.label.startswith(PREFIX)}
    return Calm(waits_ms=[1000 * (happened[label] - at) for label, at in yes.items()])
