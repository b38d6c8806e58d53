"""How soon a call goes on once people said yes, while nothing else goes on: from the answer to the effect's start."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from proofs.approvals.identities import APPROVERS
from proofs.approvals.scenarios import Scenarios
from proofs.approvals.testbed import Testbed

PREFIX = "calm"


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencySample:
    waits_ms: Sequence[float]

    def compute_quantile(self, share: float) -> float:
        sorted_waits = sorted(self.waits_ms)
        return sorted_waits[min(int(share * len(sorted_waits)), len(sorted_waits) - 1)]


async def measure_latency(testbed: Testbed, scenarios: Scenarios, count: int) -> LatencySample:
    """One after the other, at no particular moment of a worker's round."""
    for number in range(count):
        case = scenarios.create_case(f"{PREFIX}-{number}", "approved")
        case.tool, case.delay_ms = "asked.book", 0
        scenarios.cases.append(case)
        await scenarios.client.submit_call(case)
        await asyncio.sleep(testbed.rng.uniform(0.05, 0.25))
        await scenarios.client.approve(case, testbed.rng.choice(APPROVERS), slot=testbed.gateway_slots[0])
        await testbed.database.wait_until("select state = 'succeeded' from deputize.calls where id = $1", case.call_id)
    effect_times = {effect.call: effect.at for effect in await testbed.ledger.list_effects()}
    decision_times = {
        tale.label: decision.at
        for tale in scenarios.cases
        for decision in tale.decisions
        if tale.label.startswith(PREFIX)
    }
    return LatencySample(waits_ms=[1000 * (effect_times[label] - at) for label, at in decision_times.items()])
