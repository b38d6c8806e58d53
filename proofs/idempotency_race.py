"""Many callers race with one key over two gateways: one executes, the others are told the truth.

First key by key, so that each commit's rows are known to share one key and duplicates inside single batches can be
counted; then many keys at once in different orders, some racers with other input, so that batches could deadlock.
The ledger, a process of its own that would issue a number twice if asked twice, says how often each key executed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import asyncpg

from deputize.core.caller import ADMIN_SCOPE
from deputize.interfaces.cli.local.tool_loader import load_tool_files
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, put_policies, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.postgres_proxy import PgProxy
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "idempotency_race"
PROMISE = "Of any number of racers with one key, over several gateways, exactly one executes."

RACERS = 50
KEYS_AT_ONCE = 8
"""Keys raced at once in the second part."""
CONTROL_RACES = 10
"""How often the broken gateways race at most until they are caught."""
CHANGED_RACERS = 5
"""Racers of each of those keys that ask for something else."""


_INTENTS = """
select count(*) from deputize.audit_entries a
where a.call_id in (select k.id from deputize.calls k where k.tool = 'effects.issue')
  and convert_from(a.entry, 'UTF8')::json ->> 'kind' = 'intent'
"""


@dataclass(kw_only=True, slots=True)
class RaceResult:
    """What the racers were told, and what is wrong with it."""

    answer_counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    server_errors: int = 0
    shared_batch_count: int = 0
    labels_by_key: list[tuple[str, ...]] = field(default_factory=list)
    """Per key the labels its racers asked for: one effect of any of them is what may have happened."""


@dataclass(kw_only=True, slots=True)
class Testbed:
    """Two gateways, with as many lines to each as racers ever need at once."""

    gateways: list[GatewayHandle]
    proxies: list[PgProxy]
    issuer: Issuer
    token: str
    connections: list[list[HttpConnection]]
    rng: random.Random

    def count_commits(self) -> int:
        return sum(count for proxy in self.proxies for sql, count in proxy.commits.items() if "commit_calls(" in sql)

    async def race_keys(self, keys: Sequence[tuple[str, Sequence[str]]]) -> dict[str, list[tuple[str, HttpResponse]]]:
        """For each key, a racer per label, all sent at once over lines of their own, half of them to each gateway."""
        racers = [(key, label) for key, labels in keys for label in labels]
        self.rng.shuffle(racers)
        answers = await asyncio.gather(
            *(
                self.send_call(self.connections[number % 2][number // 2], key, label)
                for number, (key, label) in enumerate(racers)
            )
        )
        answers_by_key: dict[str, list[tuple[str, HttpResponse]]] = {key: [] for key, _ in keys}
        for (key, label), answer in zip(racers, answers, strict=True):
            answers_by_key[key].append((label, answer))
        return answers_by_key

    async def send_call(self, http: HttpConnection, key: str, label: str, *, token: str | None = None) -> HttpResponse:
        request = {"tool": "effects.issue", "arguments": {"label": label}}
        bearer = f"Bearer {token or self.token}"
        return await http.post("/v1/calls", request, idempotency_key=key, authorization=bearer)


async def prove(sandbox: Sandbox) -> Verdict:
    postgres, ledger = await asyncio.gather(sandbox.start_postgres(), start_ledger(sandbox))
    testbed = await _start_testbed(sandbox, postgres.dsn, ledger)
    key_count = sandbox.pick_size(quick=40, full=500)
    single_key_count = key_count // 2
    sandbox.log(
        f"{single_key_count} keys one by one, then {key_count - single_key_count} keys, {KEYS_AT_ONCE} at a time; "
        f"{RACERS} racers each"
    )
    result = RaceResult()
    for number in range(single_key_count):
        await _race_one_key(testbed, result, f"one-{number}")
    sandbox.log(f"{result.shared_batch_count} of {single_key_count} keys had racers inside one batch")
    for start in range(single_key_count, key_count, KEYS_AT_ONCE):
        await _race_many_keys(
            testbed, result, [f"crowd-{number}" for number in range(start, min(start + KEYS_AT_ONCE, key_count))]
        )
    sandbox.log(f"answers: {', '.join(f'{count} x {what}' for what, count in result.answer_counts.most_common())}")
    executions = count_executions(result, Counter(effect.call for effect in await ledger.list_effects()))
    for sentence in result.faults[:20]:
        sandbox.log(f"wrong: {sentence}")
    deadlocks, intents = await _fetch_postgres_counts(postgres.dsn)
    is_caught = await _run_control(sandbox, testbed, ledger)
    return build_verdict(
        result, executions, deadlocks, intents - len(result.labels_by_key), is_caught, single_key_count, key_count
    )


async def _start_testbed(sandbox: Sandbox, dsn: str, ledger: LedgerHandle) -> Testbed:
    issuer, env = create_issuer(), {"PROOF_LEDGER": ledger.url}
    proxies, gateways = [PgProxy(dsn), PgProxy(dsn)], []
    for name, proxy in zip("ab", proxies, strict=True):
        await proxy.__aenter__()
        sandbox.add_cleanup(proxy.__aexit__)
        gateways.append(
            await start_gateway(sandbox, proxy.dsn, issuer, name=name, tools="effects.py", env=env, migrate_dsn=dsn)
        )
    connections = [
        [HttpConnection.for_url(gateway.url) for _ in range(KEYS_AT_ONCE * RACERS // 2)] for gateway in gateways
    ]
    testbed = Testbed(
        gateways=gateways,
        proxies=proxies,
        issuer=issuer,
        token=issuer.issue_token("ann"),
        connections=connections,
        rng=random.Random(0),
    )
    await _register_other_tenant(testbed)
    return testbed


async def _register_other_tenant(testbed: Testbed) -> None:
    """The same tool for a second tenant, registered there by its own administrator."""
    tools = load_tool_files(["tools/effects.py"], [], testbed.gateways[0].folder).tools
    contract = next(tool.contract for tool in tools if tool.contract.full_name == "effects.issue")
    admin = testbed.issuer.issue_token("root", tenant="globex", scopes=(ADMIN_SCOPE,))
    await put_policies(testbed.gateways[0].url, admin)
    answer = await testbed.connections[0][0].post(
        "/v1/tools", contract.model_dump(mode="json"), authorization=f"Bearer {admin}"
    )
    if answer.status != 201:
        raise RuntimeError(f"the second tenant's tool was not registered: {answer.status} {answer.body!r}")


async def _race_one_key(testbed: Testbed, result: RaceResult, key: str) -> None:
    """One key alone on the track, then every other thing that may be asked with it."""
    commits_before = testbed.count_commits()
    answers = (await testbed.race_keys([(key, [key] * RACERS)]))[key]
    # Each racer opens a call; fewer commits than racers means that some of them shared one.
    result.shared_batch_count += testbed.count_commits() - commits_before < RACERS
    result.labels_by_key.append((key,))
    check_answers(result, key, answers)
    http = testbed.connections[testbed.rng.randrange(2)][0]
    check_later_answers(
        result,
        key,
        _find_winner(answers),
        retry=await testbed.send_call(http, key, key),
        other_input=await testbed.send_call(http, key, f"{key}-other"),
    )
    for label, token in (
        (f"{key}-globex", testbed.issuer.issue_token("ann", tenant="globex")),
        (f"{key}-bob", testbed.issuer.issue_token("bob")),
    ):
        check_other_caller(result, label, await testbed.send_call(http, key, label, token=token))


async def _race_many_keys(testbed: Testbed, result: RaceResult, keys: Sequence[str]) -> None:
    """Many keys at once; whichever input comes first holds its key, the other is refused."""
    labels = {key: [key] * (RACERS - CHANGED_RACERS) + [f"{key}-changed"] * CHANGED_RACERS for key in keys}
    answers_by_key = await testbed.race_keys(list(labels.items()))
    for key in keys:
        result.labels_by_key.append((key, f"{key}-changed"))
        check_answers(result, key, answers_by_key[key])


def _find_winner(answers: Sequence[tuple[str, HttpResponse]]) -> HttpResponse | None:
    winners = [answer for _, answer in answers if answer.status == 200 and "idempotency-replayed" not in answer.headers]
    return winners[0] if len(winners) == 1 else None


def check_answers(result: RaceResult, key: str, answers: Sequence[tuple[str, HttpResponse]]) -> None:
    """One winner; the same input hears its outcome byte for byte or 409, other input 422."""
    winner = _find_winner(answers)
    if winner is None:
        result.faults.append(f"{key}: there was not exactly one winner")
        return
    winning_label = next(label for label, answer in answers if answer is winner)
    for label, answer in answers:
        if answer is winner:
            outcome = "executed"
        elif answer.status == 200 and label == winning_label and answer.body == winner.body:
            outcome = "replayed byte for byte"
        elif answer.status == 409:
            outcome = "in flight (409)"
        elif answer.status == 422 and label != winning_label:
            outcome = "other input (422)"
        else:
            outcome = f"wrong ({answer.status})"
            result.faults.append(f"{key}: a racer was answered with {answer.status} {answer.body[:200]!r}")
        result.answer_counts[outcome] += 1
        result.server_errors += answer.status >= 500


def check_later_answers(
    result: RaceResult, key: str, winner: HttpResponse | None, *, retry: HttpResponse, other_input: HttpResponse
) -> None:
    """After the race: a retry gets the first outcome byte for byte, other input gets 422."""
    if winner is None or retry.body != winner.body or retry.headers.get("idempotency-replayed") != "true":
        result.faults.append(f"{key}: a later retry was not the first outcome, byte for byte")
    if other_input.status != 422:
        result.faults.append(f"{key}: other input was answered with {other_input.status}")


def check_other_caller(result: RaceResult, label: str, answer: HttpResponse) -> None:
    """The same key of another user or tenant is another key: it executes on its own."""
    result.labels_by_key.append((label,))
    if answer.status != 200 or "idempotency-replayed" in answer.headers:
        result.faults.append(f"{label}: another caller's same key was answered with {answer.status}")


def count_executions(result: RaceResult, effect_counts: Mapping[str, int]) -> Counter[int]:
    """Count how many keys executed how often, by the effects that the ledger has of each label."""
    return Counter(sum(effect_counts.get(label, 0) for label in labels) for labels in result.labels_by_key)


async def _fetch_postgres_counts(dsn: str) -> tuple[int, int]:
    """Deadlocks PostgreSQL had to break, and intents written down for the raced tool."""
    connection: asyncpg.Connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select pg_stat_force_next_flush()")
        deadlocks = await connection.fetchval("select sum(deadlocks) from pg_stat_database")
        return int(deadlocks), int(await connection.fetchval(_INTENTS))
    finally:
        await connection.close()


async def _run_control(sandbox: Sandbox, testbed: Testbed, ledger: LedgerHandle) -> bool:
    """Gateways that let everyone win whose key is among those claimed by its batch.

    Several keys race at a time: while the first racer of one commits, those of the others gather in the next batch.
    """
    await asyncio.gather(*(restart_as_variant(gateway, "race_winner_by_key") for gateway in testbed.gateways))
    for http in (line for connections in testbed.connections for line in connections):
        http.close()
    max_executions = 0
    for race in range(CONTROL_RACES):
        keys = [f"control-{race}-{number}" for number in range(KEYS_AT_ONCE)]
        await testbed.race_keys([(key, [key] * RACERS) for key in keys])
        effect_counts = Counter(effect.call for effect in await ledger.list_effects())
        max_executions = max(max_executions, *(effect_counts[key] for key in keys))
        if max_executions > 1:
            break
    sandbox.log(f"winners picked by key: up to {max_executions} executions of one key")
    return max_executions > 1


def build_verdict(
    result: RaceResult,
    executions: Counter[int],
    deadlocks: int,
    surplus_intents: int,
    is_caught: bool,
    single_key_count: int,
    key_count: int,
) -> Verdict:
    return Verdict(
        figures={
            "keys": key_count,
            "racers_per_key": RACERS,
            "keys_not_executed_exactly_once": sum(executions.values()) - executions[1],
            "wrong_answers": len(result.faults),
            "server_errors": result.server_errors,
            "deadlocks_in_postgres": deadlocks,
            "intents_beyond_one_per_key": surplus_intents,
            "share_of_keys_with_racers_in_one_batch": result.shared_batch_count / single_key_count,
            "told_in_flight": result.answer_counts["in flight (409)"],
            "told_the_same_bytes": result.answer_counts["replayed byte for byte"],
            "told_other_input": result.answer_counts["other input (422)"],
        },
        controls={"race_winner_by_key": is_caught},
        notes=[
            f"Half of the keys raced alone: {RACERS} openings in fewer commits prove duplicates inside single batches; "
            "then each was asked for again (same bytes), with other input (422), by another user and another tenant "
            "(each executed on its own).",
            f"The other half raced {KEYS_AT_ONCE} at a time in shuffled order, {CHANGED_RACERS} of {RACERS} "
            "racers with other input.",
        ],
    )
