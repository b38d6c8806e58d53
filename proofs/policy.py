"""Policies at size, under change, and looking back: what a decision costs, when a change holds, what a draft would do.

Above: `python -m proofs policy`. Below: `policies/large.py` (ten thousand rules), `policies/change.py` (three gateways
under load while policies are put), `policies/past.py` (a draft on recorded calls).
"""

import asyncio
import random
import time

from deputize.govern.policy.slices import Slices
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.variant import restart_as
from proofs.kit.world import World
from proofs.policies import change, large, past

NAME = "policy"
PROMISE = "Policies decide at size, hold at their commit, deny when they fail, and tell beforehand what they change."

_SAMPLE = 250


async def prove(world: World) -> Verdict:
    tools = world.size(quick=100, full=500)
    figures, controls = await _at_size(world, tools)
    site = await change.open_site(world)
    found = await change.changes_under_load(world, site, world.size(quick=30, full=400), "the gateways")
    await asyncio.gather(*(restart_as(gateway, "policy_ignored") for gateway in site.gateways))
    broken = await change.changes_under_load(world, site, world.size(quick=25, full=120), "policy_ignored")
    controls["policy_ignored"] = broken.total("late") > 0
    gateway = await past.open_gateway(world, site)
    looked = await past.backtest(world, gateway, world.size(quick=1000, full=10_000))
    figures |= {
        "changes": found.puts,
        "calls_meanwhile": found.calls,
        "stopped_at_barrier": found.stopped,
        "late": found.total("late"),
        "early": found.total("early"),
        "other": found.total("other"),
        "snapshot_lag_ms": round(found.lag_us / 1000, 1),
        "let_through_on_error": await past.failures_deny(gateway, 20),
        "backtested": looked.calls,
        "backtest_seconds": round(looked.seconds, 2),
        "backtest_changed": looked.changed,
        "backtest_untold": looked.untold,
        "backtest_wrong": looked.wrong,
    }
    bars, starved = _bars(world, tools), ("early", "other")
    return Verdict(figures=figures, bars=bars, controls=controls, notes=found.samples, starved=starved)


def _bars(world: World, tools: int) -> dict[str, Bar]:
    return {
        "rules": (">=", tools * large.PER_TOOL),
        "decision_ratio": ("<=", 1.5 if world.full else 3.0),
        "cached_us": ("<=", world.within(2.0)),
        "slice_requests": (">=", world.size(quick=500, full=10_000)),
        "slice_differences": ("==", 0),
        "changes": (">=", world.size(quick=30, full=400)),
        "stopped_at_barrier": (">=", world.size(quick=1, full=100)),
        "late": ("==", 0),
        "early": ("==", 0),
        "other": ("==", 0),
        "snapshot_lag_ms": ("<=", world.within(1000.0)),
        "let_through_on_error": ("==", 0),
        "backtested": (">=", world.size(quick=1000, full=10_000)),
        "backtest_seconds": ("<=", world.within(10.0)),
        "backtest_changed": (">=", 1),
        "backtest_untold": (">=", 1),
        "backtest_wrong": ("==", 0),
    }


async def _at_size(world: World, tools: int) -> tuple[dict[str, Figure], dict[str, bool]]:
    began = time.monotonic()
    policies = await asyncio.to_thread(large.compiled, tools)
    took = time.monotonic() - began
    contracts = [large.contract(number) for number in range(tools)]
    dice = random.Random(5)
    sample = large.questions(_SAMPLE, contracts, dice)
    cost = large.cost(policies, sample, world.size(quick=6, full=20), took)
    world.say(
        f"{len(policies.rules)} rules: bare {cost.bare:.1f} µs, decided {cost.decided:.1f} µs, with its record "
        f"{cost.recorded:.1f} µs, cached {cost.cached:.2f} µs"
    )
    asked = large.questions(world.size(quick=500, full=10_000), contracts, dice)
    different = await asyncio.to_thread(large.differences, policies, Slices(policies.rules), asked)
    world.say(f"{len(asked)} random requests: a slice differs from the whole set in {different}")
    forgetful = large.Forgetful(policies.rules)
    figures: dict[str, Figure] = {
        "rules": len(policies.rules),
        "decision_ratio": round(cost.decided / cost.bare, 3),
        "recorded_ratio": round(cost.recorded / cost.bare, 3),
        "bare_us": round(cost.bare, 1),
        "cached_us": round(cost.cached, 2),
        "reading_seconds": round(cost.compile_seconds, 2),
        "slice_requests": len(asked),
        "slice_differences": different,
    }
    return figures, {"forgetful_slices": large.differences(policies, forgetful, asked[:_SAMPLE]) > 0}
