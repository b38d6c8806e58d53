"""Many callers race with one key over two gateways: one executes, the others are told the truth.

First key by key, so that each commit's rows are known to share one key and duplicates inside single batches can be
counted; then many keys at once in different orders, some racers with other input, so that batches could deadlock.
The ledger, a process of its own that would issue a number twice if asked twice, says how often each key executed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from deputize.catalog.importers.python import load_files
from deputize.core.caller import ADMIN_SCOPE
from proofs.kit.companions import LedgerHandle, start_ledger
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, put_policies, start_gateway
from proofs.kit.pgproxy import PgProxy
from proofs.kit.report import Verdict
from proofs.kit.variant import restart_as
from proofs.kit.wire import Answer, Line
from proofs.kit.world import World

NAME = "idempotency_race"
PROMISE = "Of any number of racers with one key, over several gateways, exactly one executes."

RACERS = 50
CROWD = 8
"""Keys raced at once in the second part."""
CHANGED = 5
"""Racers of each of those keys that ask for something else."""


_INTENTS = """
select count(*) from deputize.audit_entries a
where a.call_id in (select k.id from deputize.calls k where k.tool = 'effects.issue')
  and convert_from(a.entry, 'UTF8')::json ->> 'kind' = 'intent'
"""


@dataclass(kw_only=True, slots=True)
class Seen:
    """What the racers were told, and what is wrong with it."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    server_errors: int = 0
    shared_a_batch: int = 0
    labels: list[tuple[str, ...]] = field(default_factory=list)
    """Per key the labels its racers asked for: one effect of any of them is what may have happened."""


@dataclass(kw_only=True, slots=True)
class Track:
    """Two gateways, with as many lines to each as racers ever need at once."""

    gateways: list[GatewayHandle]
    proxies: list[PgProxy]
    issuer: Issuer
    token: str
    lines: list[list[Line]]
    choose: random.Random

    def commits(self) -> int:
        return sum(count for proxy in self.proxies for sql, count in proxy.commits.items() if "commit_calls(" in sql)

    async def race(self, keys: Sequence[tuple[str, Sequence[str]]]) -> dict[str, list[tuple[str, Answer]]]:
        """For each key, a racer per label, all sent at once over lines of their own, half of them to each gateway."""
        racers = [(key, label) for key, labels in keys for label in labels]
        self.choose.shuffle(racers)
        answers = await asyncio.gather(
            *(self.call(self.lines[number % 2][number // 2], key, label) for number, (key, label) in enumerate(racers))
        )
        told: dict[str, list[tuple[str, Answer]]] = {key: [] for key, _ in keys}
        for (key, label), answer in zip(racers, answers, strict=True):
            told[key].append((label, answer))
        return told

    async def call(self, line: Line, key: str, label: str, *, token: str | None = None) -> Answer:
        asked = {"tool": "effects.issue", "arguments": {"label": label}}
        bearer = f"Bearer {token or self.token}"
        return await line.post("/v1/calls", asked, idempotency_key=key, authorization=bearer)


async def prove(world: World) -> Verdict:
    postgres, ledger = await asyncio.gather(world.postgres(), start_ledger(world))
    track = await _open_track(world, postgres.dsn, ledger)
    keys = world.size(quick=40, full=500)
    one_by_one = keys // 2
    world.say(f"{one_by_one} keys one by one, then {keys - one_by_one} keys, {CROWD} at a time; {RACERS} racers each")
    seen = Seen()
    for number in range(one_by_one):
        await _one_key(track, seen, f"one-{number}")
    world.say(f"{seen.shared_a_batch} of {one_by_one} keys had racers inside one batch")
    for start in range(one_by_one, keys, CROWD):
        await _crowd(track, seen, [f"crowd-{number}" for number in range(start, min(start + CROWD, keys))])
    world.say(f"answers: {', '.join(f'{count} x {what}' for what, count in seen.answers.most_common())}")
    executions = await _executions(ledger, seen)
    for sentence in seen.wrong[:20]:
        world.say(f"wrong: {sentence}")
    deadlocks, intents = await _in_postgres(postgres.dsn)
    caught = await _control(world, track, ledger)
    return _verdict(seen, executions, deadlocks, intents - len(seen.labels), caught, one_by_one, keys)


async def _open_track(world: World, dsn: str, ledger: LedgerHandle) -> Track:
    issuer, env = new_issuer(), {"PROOF_LEDGER": ledger.url}
    proxies, gateways = [PgProxy(dsn), PgProxy(dsn)], []
    for name, proxy in zip("ab", proxies, strict=True):
        await proxy.__aenter__()
        world.at_end(proxy.__aexit__)
        gateways.append(
            await start_gateway(world, proxy.dsn, issuer, name=name, tools="effects.py", env=env, migrate_dsn=dsn)
        )
    lines = [[Line.to(gateway.url) for _ in range(CROWD * RACERS // 2)] for gateway in gateways]
    track = Track(
        gateways=gateways,
        proxies=proxies,
        issuer=issuer,
        token=issuer.token("ann"),
        lines=lines,
        choose=random.Random(0),
    )
    await _register_elsewhere(track)
    return track


async def _register_elsewhere(track: Track) -> None:
    """The same tool for a second tenant, registered there by its own administrator."""
    tools = load_files(["tools/effects.py"], track.gateways[0].folder)
    contract = next(tool.contract for tool in tools if tool.contract.full_name == "effects.issue")
    admin = track.issuer.token("root", tenant="globex", scopes=(ADMIN_SCOPE,))
    await put_policies(track.gateways[0].url, admin)
    answer = await track.lines[0][0].post(
        "/v1/tools", contract.model_dump(mode="json"), authorization=f"Bearer {admin}"
    )
    if answer.status != 201:
        raise RuntimeError(f"the second tenant's tool was not registered: {answer.status} {answer.body!r}")


async def _one_key(track: Track, seen: Seen, key: str) -> None:
    """One key alone on the track, then every other thing that may be asked with it."""
    before = track.commits()
    told = (await track.race([(key, [key] * RACERS)]))[key]
    # Each racer opens a call; fewer commits than racers means that some of them shared one.
    seen.shared_a_batch += track.commits() - before < RACERS
    seen.labels.append((key,))
    _judge(seen, key, told)
    winner = _winner(told)
    line = track.lines[track.choose.randrange(2)][0]
    again = await track.call(line, key, key)
    if winner is None or again.body != winner.body or again.headers.get("idempotency-replayed") != "true":
        seen.wrong.append(f"{key}: a later retry was not the first outcome, byte for byte")
    changed = await track.call(line, key, f"{key}-other")
    if changed.status != 422:
        seen.wrong.append(f"{key}: other input was answered with {changed.status}")
    for label, token in (
        (f"{key}-globex", track.issuer.token("ann", tenant="globex")),
        (f"{key}-bob", track.issuer.token("bob")),
    ):
        other = await track.call(line, key, label, token=token)
        seen.labels.append((label,))
        if other.status != 200 or "idempotency-replayed" in other.headers:
            seen.wrong.append(f"{label}: somebody else's same key was answered with {other.status}")


async def _crowd(track: Track, seen: Seen, keys: Sequence[str]) -> None:
    """Many keys at once; whichever input comes first holds its key, the other is refused."""
    labels = {key: [key] * (RACERS - CHANGED) + [f"{key}-changed"] * CHANGED for key in keys}
    told = await track.race(list(labels.items()))
    for key in keys:
        seen.labels.append((key, f"{key}-changed"))
        _judge(seen, key, told[key])


def _winner(told: Sequence[tuple[str, Answer]]) -> Answer | None:
    won = [answer for _, answer in told if answer.status == 200 and "idempotency-replayed" not in answer.headers]
    return won[0] if len(won) == 1 else None


def _judge(seen: Seen, key: str, told: Sequence[tuple[str, Answer]]) -> None:
    """One winner; the same input hears its outcome byte for byte or 409, other input 422."""
    winner = _winner(told)
    if winner is None:
        seen.wrong.append(f"{key}: there was not exactly one winner")
        return
    held = next(label for label, answer in told if answer is winner)
    for label, answer in told:
        if answer is winner:
            what = "executed"
        elif answer.status == 200 and label == held and answer.body == winner.body:
            what = "replayed byte for byte"
        elif answer.status == 409:
            what = "in flight (409)"
        elif answer.status == 422 and label != held:
            what = "other input (422)"
        else:
            what = f"wrong ({answer.status})"
            seen.wrong.append(f"{key}: a racer was answered with {answer.status} {answer.body[:200]!r}")
        seen.answers[what] += 1
        seen.server_errors += answer.status >= 500


async def _executions(ledger: LedgerHandle, seen: Seen) -> Counter[int]:
    """How many keys executed how often, as the ledger knows it."""
    happened = Counter(effect.call for effect in await ledger.effects())
    return Counter(sum(happened[label] for label in labels) for labels in seen.labels)


async def _in_postgres(dsn: str) -> tuple[int, int]:
    """Deadlocks PostgreSQL had to break, and intents written down for the raced tool."""
    connection: asyncpg.Connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select pg_stat_force_next_flush()")
        deadlocks = await connection.fetchval("select sum(deadlocks) from pg_stat_database")
        return int(deadlocks), int(await connection.fetchval(_INTENTS))
    finally:
        await connection.close()


async def _control(world: World, track: Track, ledger: LedgerHandle) -> bool:
    """Gateways that let everyone win whose key is among those claimed by its batch."""
    await asyncio.gather(*(restart_as(gateway, "race_winner_by_key") for gateway in track.gateways))
    for line in (line for lines in track.lines for line in lines):
        line.close()
    keys = [f"control-{number}" for number in range(5)]
    for key in keys:
        await track.race([(key, [key] * RACERS)])
    happened = Counter(effect.call for effect in await ledger.effects())
    most = max(happened[key] for key in keys)
    world.say(f"winners picked by key: up to {most} executions of one key")
    return most > 1


def _verdict(
    seen: Seen,
    executions: Counter[int],
    deadlocks: int,
    surplus: int,
    caught: bool,
    one_by_one: int,
    keys: int,
) -> Verdict:
    return Verdict(
        starved=("wrong_answers", "server_errors"),
        figures={
            "keys": keys,
            "racers_per_key": RACERS,
            "keys_not_executed_exactly_once": sum(executions.values()) - executions[1],
            "wrong_answers": len(seen.wrong),
            "server_errors": seen.server_errors,
            "deadlocks_in_postgres": deadlocks,
            "intents_beyond_one_per_key": surplus,
            "share_of_keys_with_racers_in_one_batch": seen.shared_a_batch / one_by_one,
            "told_in_flight": seen.answers["in flight (409)"],
            "told_the_same_bytes": seen.answers["replayed byte for byte"],
            "told_other_input": seen.answers["other input (422)"],
        },
        bars={
            "keys_not_executed_exactly_once": ("==", 0),
            "wrong_answers": ("==", 0),
            "server_errors": ("==", 0),
            "deadlocks_in_postgres": ("==", 0),
            "intents_beyond_one_per_key": ("==", 0),
            "share_of_keys_with_racers_in_one_batch": (">=", 0.9),
            "keys": (">=", keys),
        },
        controls={"race_winner_by_key": caught},
        notes=[
            f"Half of the keys raced alone: {RACERS} openings in fewer commits prove duplicates inside single batches; "
            "then each was asked for again (same bytes), with other input (422), by another user and another tenant "
            "(each executed on its own).",
            f"The other half raced {CROWD} at a time in shuffled order, {CHANGED} of {RACERS} racers with other input.",
        ],
    )
