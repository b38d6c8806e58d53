"""Many agents for many people at once: whoever the upstream saw must be whoever called.

Every call is known three times: to the client that made it, to the upstream that was shown a credential for it, and to
the gateway's own audit entry. Above: `proofs.confused_deputy`. Below: `site` and `doors`.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import asyncpg
import orjson

from deputize.core.errors import CallNotFound, TicketNotFound
from proofs.deputy.answers import slug_of
from proofs.deputy.doors import Doors
from proofs.deputy.site import BESIDE, HERE, Site
from proofs.kit.upstream import SHOWN
from proofs.kit.wire import Line

_AT_ONCE = 24
_NOT_THERE = frozenset({CallNotFound.face.slug, TicketNotFound.face.slug})
_STATES = """
    select k.id::text as id, k.state, owner_epoch, cancel_asked, a.state as asked,
           (select count(*) from deputize.votes v where v.tenant = a.tenant and v.id = a.id) as voices
    from deputize.calls k left join deputize.approvals a on a.tenant = k.tenant and a.call_id = k.id
    where k.id = any($1::uuid[])
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hand:
    """A person's authority in an agent's hands."""

    tenant: str
    user: str
    agent: str
    token: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    hand: Hand
    tool: str
    id: str
    status: int
    told: tuple[str, str] | None
    """Whom the answer says the upstream took the caller for."""


@dataclass(kw_only=True, slots=True)
class Judged:
    calls: int = 0
    pairs: int = 0
    looks: int = 0
    minted: dict[str, str] = field(default_factory=dict)
    """Every credential the upstream was shown, by its call."""
    wrong: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0

    def mismatch(self, what: str, call: str, said: object) -> None:
        self.wrong[what] += 1
        if self.wrong[what] <= 3:
            self.samples.append(f"{what}: call {call}: {said}")


async def lend_all(site: Site, users: dict[str, str], agents: dict[str, str]) -> list[Hand]:
    """Every agent gets every user's authority, each by an exchange of its own."""
    hands: list[Hand] = []
    waiting = iter(list(product(users.items(), agents.items())))

    async def one_after_another() -> None:
        line = Line.to(site.url)
        for (user, subject), (agent, actor) in waiting:
            token = await site.lend(line, subject, actor)
            hands.append(Hand(tenant=HERE, user=user, agent=agent, token=token))
        line.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(one_after_another())
    return hands


async def call_all(site: Site, hands: Sequence[Hand], *, seed: int = 1) -> list[Call]:
    """Each hand calls both tools, all mixed up, many at once."""
    wanted = list(product(hands, ("whoami_upstream", "keyed")))
    random.Random(seed).shuffle(wanted)
    waiting, made = iter(wanted), list[Call]()

    async def one_after_another() -> None:
        line = Line.to(site.url)
        for hand, tool in waiting:
            made.append(await _call(line, hand, tool))
        line.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(one_after_another())
    return made


async def _call(line: Line, hand: Hand, tool: str, **more: str) -> Call:
    asked = {"tool": f"deputy.{tool}", "arguments": {"word": f"{hand.user} {hand.agent}"}, **more}
    answer = await line.send(
        "POST", "/v1/calls", headers={"authorization": f"Bearer {hand.token}"}, body=orjson.dumps(asked)
    )
    said = answer.json()
    told = None
    if answer.status == 200 and tool == "whoami_upstream":
        told = (said["result"]["user"], said["result"]["agent"])
    return Call(hand=hand, tool=tool, id=said.get("call_id", ""), status=answer.status, told=told)


async def judge(site: Site, calls: Sequence[Call]) -> Judged:
    found = Judged(calls=len(calls), pairs=len({(each.hand.tenant, each.hand.user, each.hand.agent) for each in calls}))
    shown = defaultdict[str, list[dict[str, Any]]](list)
    for line in _lines(site):
        shown[line["call"]].append(line)
    for call in calls:
        if call.status != 200:
            found.mismatch("not answered", call.id, call.status)
            continue
        if len(shown[call.id]) != 1:
            found.mismatch("not exactly one request upstream", call.id, len(shown[call.id]))
            continue
        _judge_call(site, found, call, shown[call.id][0])
    _judge_reuse(found, shown)
    await _judge_entries(site, found, calls)
    return found


async def queue_all(site: Site, hands: Sequence[Hand]) -> list[Call]:
    """Each hand has one call queued, which nobody carries, or here also one that people are asked about."""
    line, made = Line.to(site.url), list[Call]()
    for number, hand in enumerate(hands):
        made.append(await _call(line, hand, "plead" if hand.tenant == HERE and number % 2 else "look", mode="async"))
        if made[-1].status != 202:
            raise RuntimeError(f"a call was not queued: {made[-1].status}")
    line.close()
    return made


async def meddle(site: Site, doors: Doors, calls: Sequence[Call], found: Judged, *, most: int) -> int:
    """Everybody looks at calls made for somebody else, or for the same person by another agent, and tries to have them
    stopped, made again or sent back, at every door that takes a call's id. Returns how often.
    """
    tries, before = 0, await _states(site, calls)
    line = Line.to(site.url)
    for call, other in pairwise(calls[:most]):
        mine, theirs = call.hand, other.hand
        if (mine.tenant, mine.user, mine.agent) == (theirs.tenant, theirs.user, theirs.agent):
            continue
        for door in doors.about(other.id):
            answer = await door.ask(line, mine.token)
            tries += 1
            if slug_of(answer) not in _NOT_THERE:
                said = f"{mine.user} {mine.agent} at {door.name}: {answer.status} {answer.body[:200]!r}"
                found.mismatch("another's call was shown", other.id, said)
    line.close()
    for call_id, state in (await _states(site, calls)).items():
        if before[call_id] != state:
            found.mismatch("another's call was changed", call_id, f"{before[call_id]} {state}")
    return tries


async def _states(site: Site, calls: Sequence[Call]) -> dict[str, tuple[Any, ...]]:
    """Reads leave no row, and cannot be changed either."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(site.postgres.dsn)
    try:
        ids = [each.id for each in calls]
        rows = await connection.fetch(_STATES, ids)
    finally:
        await connection.close()
    return {row["id"]: tuple(row) for row in rows}


def _judge_call(site: Site, found: Judged, call: Call, seen: dict[str, Any]) -> None:
    hand = call.hand
    if call.tool == "keyed":
        if seen["shown"] != {"x-api-key": site.secrets[hand.tenant]}:
            found.mismatch("another tenant's secret", call.id, hand.tenant)
        return
    who = seen["who"]
    found.minted[call.id] = seen["shown"].get("authorization", "").removeprefix("Bearer ")
    actor = who.get("act") or {}
    if (who.get("sub"), actor.get("sub")) != (hand.user, hand.agent):
        found.mismatch("another's credential", call.id, f"{who.get('sub')} {actor} for {hand.user} {hand.agent}")
    elif call.told != (hand.user, hand.agent):
        found.mismatch("another's answer", call.id, call.told)
    elif who["iss"] != f"{site.url}/t/{hand.tenant}":
        found.mismatch("another tenant's issuer", call.id, who["iss"])
    else:
        found.longest_seconds = max(found.longest_seconds, who["exp"] - who["iat"])


def _judge_reuse(found: Judged, shown: dict[str, list[dict[str, Any]]]) -> None:
    """A credential belongs to one call."""
    used = defaultdict[str, set[str]](set)
    for call, lines in shown.items():
        for line in lines:
            if "jti" in line["who"]:
                used[line["who"]["jti"]].add(call)
    for token_id, of in used.items():
        if len(of) > 1:
            found.mismatch("one credential for several calls", token_id, len(of))


async def _judge_entries(site: Site, found: Judged, calls: Sequence[Call]) -> None:
    """The gateway's own word: its entry of each call names the same two, under names that only it can resolve."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(site.postgres.dsn)
    try:
        rows = await connection.fetch(
            "select call_id::text, entry from deputize.audit_entries where call_id is not null and tenant = any($1)",
            [HERE, BESIDE],
        )
    finally:
        await connection.close()
    entries = {call: orjson.loads(entry) for call, entry in rows}
    names: dict[tuple[str, str], str] = {}
    for call in calls:
        named = entries.get(call.id, {}).get("caller", [])
        for subject, pseudonym in zip((call.hand.user, call.hand.agent), named, strict=False):
            if names.setdefault((call.hand.tenant, subject), pseudonym) != pseudonym:
                found.mismatch("another's entry", call.id, subject)
        if call.status == 200 and len(named) != 2:
            found.mismatch("no entry with both names", call.id, len(named))
    if len(set(names.values())) != len(names):
        found.mismatch("two subjects under one name", "", len(names))


def _lines(site: Site) -> Iterator[dict[str, Any]]:
    for line in (site.records / SHOWN).read_bytes().splitlines():
        yield orjson.loads(line)
