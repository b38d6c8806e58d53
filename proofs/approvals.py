"""People are asked, while gateways and workers are killed, clocks are off, and what was asked about changes in between.

Each ticket is a story: who asked, who tried to decide, what changed when. `asked/stories.py` tells them at random,
`asked/weather.py` is the storm, `asked/judge.py` the verdict, from an independent ledger and the audit entries.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlencode

from proofs.asked.calm import Calm, measured
from proofs.asked.clocks import AHEAD, BEHIND, RIGHT, open_clocks
from proofs.asked.house import House, open_house
from proofs.asked.judge import Found, judge
from proofs.asked.stories import Stories, some_kinds
from proofs.asked.weather import WORKERS, Weather
from proofs.deputy.site import exchange_form
from proofs.kit.companions import start_ledger
from proofs.kit.report import Bar, Verdict
from proofs.kit.world import World

NAME = "approvals"
PROMISE = "What people approved happens once, as they saw it and in time, by those who may; nothing else happens."

SEED = 5
_QUICK, _FULL = 80, 2000
_LANES = {False: 25, True: 32}
_LENT = 8
_WAIT_MS = 300.0
_NOTES = (
    "Three gateways and two workers, each killed with SIGKILL at random and born again with a clock that is "
    "right, 45 minutes ahead or 45 minutes behind.",
    "What would be refused by readiness for its clock is given work here all the same.",
    "Between a yes and the beginning of its call: all workers are killed, something is changed, others come.",
    "An act that its upstream cannot tell from a repeat may end as unknown where a worker died with it; then "
    "somebody is asked, and it happened once at most. Every other approved one happened exactly once.",
    "From the answer to approve to the effect at the ledger, one call at a time.",
)
_UNSETTLED = """
select k.id, k.state, k.error, k.owner_epoch, a.state as ticket, a.expires_at, now() as now
from deputize.calls k join deputize.approvals a on a.tenant = k.tenant and a.call_id = k.id
where k.tenant = 'acme' and (k.state in ('queued', 'running') or a.state = 'open' and a.expires_at <= now()
    or k.state = 'unknown' and not exists (select from deputize.tickets t where t.tenant = k.tenant
        and t.call_id = k.id and t.kind <> 'approval'))
"""


async def prove(world: World) -> Verdict:
    postgres, ledger, clocks = await asyncio.gather(world.postgres(), start_ledger(world), open_clocks(world))
    house = await open_house(world, postgres, ledger, clocks, random.Random(SEED))
    await asyncio.gather(*(house.open_gate(gate, RIGHT) for gate in house.gates))
    await house.put_rules()
    for place in range(WORKERS):
        await house.man(place, RIGHT)
    world.say(f"{len(house.gates)} gateways and {WORKERS} workers are there")
    stories = Stories(house)
    calm = await measured(house, stories, world.size(quick=8, full=200))
    world.say(f"calm: {calm.quantile(0.5):.0f} ms from a yes to the effect")
    kinds = some_kinds(world.size(quick=_QUICK, full=_FULL), house.choose)
    await stories.prepare(kinds)
    weather = Weather(house=house, brief=not world.full)
    await weather.rise()
    stories.lent = await _lent(house)
    world.say("the storm rises")
    await _storm(house, stories, weather, kinds)
    found = await judge(stories.tales, await ledger.effects(), house.database)
    for sentence in found.sentences()[:40]:
        world.say(f"wrong: {sentence}")
    world.say(f"{found.ran} ran, {found.void} void, {found.expired} expired, {found.unknown} unknown")
    struck = {"gateways_killed": house.gates_killed, "workers_killed": len(house.crew.blows)}
    struck |= {"times_without_a_worker": weather.nights, "handed_out_again": weather.handed_out_again}
    controls = await _controls(house, weather)
    return _verdict(house, stories, found, calm, struck, controls)


async def _lent(house: House) -> list[tuple[str, str, str]]:
    """Lent where the clock is behind, so that what is lent is no token of the future anywhere."""
    found = []
    gate = next(gate for gate in house.gates if gate.minutes == BEHIND)
    for number in range(_LENT):
        user, agent = f"lender-{number}", f"helper-{number}"
        form = {
            **exchange_form(), "subject_token": house.people.asks(user), "actor_token": house.people.asks(agent),
        }  # fmt: skip
        answer = await house.form(gate, "/oauth/token", urlencode(form))
        if answer.status != 200:
            raise RuntimeError(f"nothing was lent: {answer.status} {answer.body[:400]!r}")
        found.append((user, agent, str(answer.json()["access_token"])))
    return found


async def _storm(house: House, stories: Stories, weather: Weather, kinds: Sequence[str]) -> None:
    """Until each story has been told to its end, and everything has come to one."""
    waiting = iter(enumerate(kinds))

    async def lane() -> None:
        for number, kind in waiting:
            await stories.tell(number, kind)
            if number % 200 == 199:
                house.world.say(f"{number + 1} stories begun, {len(house.crew.blows)} workers killed")

    storm = asyncio.create_task(weather.rage())
    telling = asyncio.gather(*(lane() for _ in range(_LANES[house.world.full])))
    try:
        await asyncio.wait((storm, telling), return_when=asyncio.FIRST_COMPLETED)
        if storm.done():
            storm.result()
        await telling
    finally:
        storm.cancel()
        telling.cancel()
        await asyncio.gather(storm, telling, return_exceptions=True)
    house.world.say(f"{len(kinds)} stories told")
    await weather.calm()
    await _settled(house)


async def _settled(house: House) -> None:
    """Until nothing is under way; what does not come to its end is left to the judge."""
    try:
        await house.database.until(f"select not exists ({_UNSETTLED})", seconds=300)
    except TimeoutError:
        for row in await house.database.fetch(_UNSETTLED):
            house.world.say(f"unsettled: {dict(row)}")


async def _controls(house: House, weather: Weather) -> dict[str, bool]:
    """Workers broken on purpose; true where the same judgement catches what they do."""
    caught = {}
    for variant in ("approvals_unbound", "approvals_unchecked"):
        stories = Stories(house)
        kinds = ["rules after", "rules after", "rules before", "rules before"]
        if variant == "approvals_unchecked":
            kinds += ["expired in the dark"] * 2
        prefix = variant.replace("_", "-")
        await stories.prepare(kinds, prefix)
        telling = asyncio.gather(*(stories.tell(number, kind, prefix) for number, kind in enumerate(kinds)))
        dark = sum(kind.endswith(("after", "dark")) for kind in kinds)
        await asyncio.gather(weather.swap_in_the_dark(f"proofs.variants.{variant}", dark), telling)
        await _settled(house)
        found = await judge(stories.tales, await house.ledger.effects(), house.database)
        wrong = [*found.after_change, *found.after_expiry]
        house.world.say(f"{variant}: {wrong[0] if wrong else 'nothing was found wrong'}")
        caught[variant] = bool(found.after_change) and bool(found.after_expiry or variant == "approvals_unbound")
    return caught


def _verdict(
    house: House, stories: Stories, found: Found, calm: Calm, struck: dict[str, int], controls: dict[str, bool]
) -> Verdict:
    full = house.world.full
    tickets = sum(len(tale.tickets) for tale in stories.tales)
    kinds = Counter(tale.kind for tale in stories.tales)
    zero: Sequence[tuple[str, list[str]]] = (
        ("executed_after_a_change", found.after_change),
        ("executed_after_expiry", found.after_expiry),
        ("executed_unapproved", found.unapproved),
        ("used_or_executed_twice", found.twice),
        ("approved_and_lost", found.lost),
        ("decided_by_who_may_not", found.wrongly_decided),
        ("expired_and_not_denied", found.expired_not_denied),
        ("entries_that_do_not_match", found.unrecorded),
        ("not_come_to_an_end", found.unended),
        ("otherwise_wrong", found.other),
    )
    bars: dict[str, Bar] = {name: ("==", 0) for name, _ in zero}
    bars |= {
        "tickets": (">=", house.world.size(quick=_QUICK, full=_FULL)),
        "gateways_killed": (">=", 1),
        "workers_killed": (">=", 1),
        "times_without_a_worker": (">=", 1),
        "ways_to_be_wrong": (">=", 10 if full else 6),
        "approve_to_effect_p50_ms": ("<=", house.world.within(_WAIT_MS)),
    }
    return Verdict(
        starved=("not_come_to_an_end",),
        figures={
            "tickets": tickets,
            "kinds_of_stories": len(kinds),
            **struck,
            "born_with_a_clock_off": house.born_by_clock.get(AHEAD, 0) + house.born_by_clock.get(BEHIND, 0),
            "executed": found.ran,
            "void": found.void,
            "expired": found.expired,
            "unknown_and_somebody_asked": found.unknown,
            "wrong_people_refused": sum(found.refused.values()),
            "ways_to_be_wrong": len(found.refused),
            **{name: len(sentences) for name, sentences in zero},
            "approve_to_effect_p50_ms": round(calm.quantile(0.5), 1),
            "approve_to_effect_p99_ms": round(calm.quantile(0.99), 1),
            "seed": SEED,
        },
        bars=bars,
        controls=controls,
        notes=_NOTES,
    )
