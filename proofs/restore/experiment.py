"""Restores to random moments, promotions of a synchronous standby, and a rolling restart, all under load.

After a backup, authority is taken back in three ways and calls are acknowledged; then the backup takes the database's
place, as of a random moment among them. Nothing may be done on that authority, nothing may be done again, and every
gateway has to stop. A promotion loses nothing, and must not stop anything.
"""

import asyncio
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import asyncpg

from deputize.core.clock import Clock
from deputize.store.local_postgres import LocalPostgres
from proofs.kit.balancer import start_balancer
from proofs.kit.gateway import ALLOW_ALL_POLICY, GatewayHandle, Issuer, create_issuer, put_policies, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.kit.write_load import Load, run_load, send_write
from proofs.restore.judge import (
    RestoreFacts,
    count_forbidden,
    count_repeats,
    judge_promotions,
    judge_restore,
    judge_restores,
    judge_rolling_restart,
)
from proofs.restore.postgres_copies import (
    KEEP_LOG_SETTINGS,
    make_backup,
    make_base_backup,
    promote_standby,
    set_moment,
    start_standby,
)
from proofs.restore.rolling_restart import restart_under_load, stop_without_drain

NAME = "restore"
PROMISE = "A database that went back in time stops every gateway; a promotion or a rolling restart stops no call."
FULL_ONLY = True

# What callers say of a new key after a restore, which knows it as little as one that it lost.
_NEW_KEYS = {"did_not_happen": True}
# The tools that are tried on authority that was taken back: by a revocation, by a switch, by a rule.
_WAYS = ("haul", "issue", "send")
_MARKED = "select count(*) from deputize.lineages where went_back_at is not null"


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    gateways: tuple[GatewayHandle, GatewayHandle]
    ledger: LedgerHandle
    issuer: Issuer

    @property
    def writer_token(self) -> str:
        return self.issuer.issue_token("writer", minutes=600)

    @property
    def admin_token(self) -> str:
        return self.issuer.issue_token("admin", scopes=("deputize:admin",))


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What happened after a backup, and the moment among it that is restored."""

    number: int
    revoked: str
    """Whose authority was revoked."""
    load: Load
    position: str
    """Where the log was at that moment."""
    kept_count: int
    """How many writes were acknowledged before it."""
    kept_acts: frozenset[str]
    """The tools that could not be called any more before it."""


async def prove(sandbox: Sandbox) -> Verdict:
    testbed, live = await _start_testbed(sandbox)
    seed = int.from_bytes(Clock().random_bytes(4))
    sandbox.log(f"moments and acts are drawn by the seed {seed}")
    rng, restores = random.Random(seed), []
    first_state = await make_backup(sandbox, live, "first-state")
    for number in range(sandbox.pick_size(quick=2, full=5)):
        backup = await make_base_backup(sandbox, live, f"base-{number}")
        past = await _take_back_authority(sandbox, testbed, live, number, rng)
        set_moment(backup, past.position)
        restores.append(await _restore(sandbox, testbed, live, backup, past))
        live = backup
    control = await _try_variant(sandbox, testbed, live, first_state, past.load.acknowledged)
    balancer_url = await start_balancer(sandbox, testbed.gateways)
    rolling = await restart_under_load(sandbox, testbed.gateways, balancer_url, testbed.writer_token)
    undrained = await stop_without_drain(sandbox, testbed.gateways[0], balancer_url, testbed.writer_token)
    for gateway in testbed.gateways:
        await gateway.child.stop()
    promotions = await _promote_standbys(sandbox, testbed, sandbox.pick_size(quick=2, full=10))
    return Verdict(
        figures={
            **judge_restores(restores),
            **promotions,
            **judge_rolling_restart(rolling),
        },
        controls={
            "restore_unnoticed": control,
            "restore_no_drain": bool(judge_rolling_restart(undrained)["rolling_calls_failed"]),
        },
        notes=[
            "A backup is restored at the same address while calls go on; seconds_to_stop is from its first answer to "
            "the moment at which the last of two gateways was seen unready because of it, so it includes reconnecting.",
            f"Moments and acts are drawn by the seed {seed}.",
        ],
    )


async def _start_testbed(sandbox: Sandbox) -> tuple[Testbed, LocalPostgres]:
    postgres = await sandbox.start_postgres(settings=KEEP_LOG_SETTINGS)
    issuer, ledger = create_issuer(), await start_ledger(sandbox)
    env = {"PROOF_LEDGER": ledger.url}
    first = await start_gateway(sandbox, postgres.dsn, issuer, name="a", tools="effects.py", env=env)
    second = await start_gateway(sandbox, postgres.dsn, issuer, name="b", tools="effects.py", env=env)
    testbed = Testbed(gateways=(first, second), ledger=ledger, issuer=issuer)
    async with run_load([first.url, second.url], testbed.writer_token, name="before", callers=4) as load:
        await asyncio.sleep(1)
    sandbox.log(f"{len(load.acknowledged)} writes before the backup")
    return testbed, postgres


async def _take_back_authority(
    sandbox: Sandbox, testbed: Testbed, live: LocalPostgres, number: int, rng: random.Random
) -> Past:
    """After the backup: a revocation, a switch and a change of the policies at random moments, with writes beside them.

    At another random moment, note where the log is.
    """
    urls = [each.url for each in testbed.gateways]
    http = HttpConnection.for_url(urls[0], token=testbed.admin_token)
    revoked, acts, position, kept_count, kept_acts = f"revoked-{number}", set[str](), "", 0, frozenset[str]()

    async def act(name: str, path: str, body: dict[str, object]) -> None:
        answer = await http.post(path, body)
        if answer.status not in (200, 201):
            raise RuntimeError(f"{path} answered {answer.status} {answer.body!r}")
        acts.add(name)

    async def forbid() -> None:
        rule = f'@id("no-haul-{number}")\nforbid (principal, action, resource == Tool::"effects.haul");\n'
        await put_policies(urls[0], testbed.admin_token, ALLOW_ALL_POLICY + rule)
        acts.add("haul")

    async with run_load(urls, testbed.writer_token, name=f"past-{number}", callers=4, **_NEW_KEYS) as load:

        async def note_moment() -> None:
            nonlocal position, kept_count, kept_acts
            kept_count, kept_acts = len(load.acknowledged), frozenset(acts)
            position = await asyncio.to_thread(live.run_sql, "select pg_current_wal_flush_lsn()")

        steps = [
            lambda: act("send", "/v1/revocations", {"kind": "subject", "value": revoked}),
            lambda: act("issue", "/v1/switches", {"kind": "tool", "value": "effects.issue", "off": True}),
            forbid,
            note_moment,
        ]
        rng.shuffle(steps)
        for step in steps:
            await asyncio.sleep(rng.uniform(0.1, 1.0))
            await step()
        await asyncio.sleep(1)
    http.close()
    sandbox.log(
        f"{len(load.acknowledged)} writes, {kept_count} of them before the moment {position}, "
        f"and before it of the acts: {', '.join(sorted(kept_acts)) or 'none'}"
    )
    return Past(
        number=number, revoked=revoked, load=load, position=position, kept_count=kept_count, kept_acts=kept_acts
    )


async def _restore(
    sandbox: Sandbox, testbed: Testbed, live: LocalPostgres, backup: LocalPostgres, past: Past
) -> dict[str, int | float]:
    urls = [each.url for each in testbed.gateways]
    async with run_load(urls, testbed.writer_token, name=f"during-{past.number}", callers=4, **_NEW_KEYS) as during:
        await asyncio.to_thread(live.kill)
        probes = [asyncio.create_task(_wait_until_stopped(each)) for each in testbed.gateways]
        await asyncio.to_thread(backup.start)
        started_at = time.monotonic()
        stopped_at = max(await asyncio.gather(*probes))
        acknowledged_before_stop = len(during.acknowledged)
        forbidden = await _count_forbidden_calls(testbed, past, _WAYS)
        # Once: it waits for long.
        new_started = past.number == 0 and await _try_new_gateway(sandbox, testbed, live.dsn)
        acknowledged_after = len(during.acknowledged) - acknowledged_before_stop
    lost, open_keys = await _list_lost(backup, past.load)
    repeats = await _repeat_keys(testbed, lost)
    confirmed = await _confirm(sandbox, testbed)
    forbidden += await _count_forbidden_calls(testbed, past, past.kept_acts)
    answers = await _send_again(testbed, lost)
    kept_answers = await _send_again(testbed, [key for key in past.load.acknowledged if key not in set(lost)])
    effects = await testbed.ledger.list_effects()
    sandbox.log(
        f"{len(lost)} lost, {len(open_keys)} open; repeats while stopped: {repeats}; "
        f"after the confirmation: {dict(answers)}, those that were kept {dict(kept_answers)}"
    )
    facts = RestoreFacts(
        forbidden_count=forbidden,
        acknowledged_after_stop=acknowledged_after,
        has_new_gateway_served=new_started,
        kept_keys=past.load.acknowledged[: past.kept_count],
        lost_keys=lost,
        keys_during=[*past.load.acknowledged, *during.acknowledged],
        answers_after=answers,
        seconds_to_stop=stopped_at - started_at,
        is_confirmed=confirmed,
        status_of_statement=await _state_one(testbed, lost[-1]),
    )
    return judge_restore(facts, effects)


async def _list_lost(backup: LocalPostgres, load: Load) -> tuple[list[str], list[str]]:
    """List the acknowledged keys that the restored database does not know, and those whose outcome it does not know."""
    connection = await asyncpg.connect(backup.dsn)
    rows = await connection.fetch("select id, state from deputize.calls where id = any($1::uuid[])", load.call_ids)
    await connection.close()
    states = {str(row["id"]): row["state"] for row in rows}
    by_key = {key: states.get(call) for key, call in zip(load.acknowledged, load.call_ids, strict=True)}
    lost = [key for key, state in by_key.items() if state is None]
    return lost, [key for key, state in by_key.items() if state not in (None, "succeeded")]


async def _wait_until_stopped(gateway: GatewayHandle) -> float:
    http = HttpConnection.for_url(gateway.metrics_url)
    async with asyncio.timeout(120):
        while True:
            checks = {each["name"]: each["ok"] for each in (await http.get("/readyz")).json()["checks"]}
            if not checks["lineage"]:
                http.close()
                return time.monotonic()
            await asyncio.sleep(0.02)


async def _count_forbidden_calls(testbed: Testbed, past: Past, ways: Collection[str]) -> int:
    """Try authority that was taken back, at every gateway, for a while."""
    tokens = dict.fromkeys(_WAYS, testbed.writer_token) | {"send": testbed.issuer.issue_token(past.revoked)}
    count = 0
    for number in range(20):
        for gateway in testbed.gateways:
            for tool, token in ((each, tokens[each]) for each in sorted(ways)):
                http = HttpConnection.for_url(gateway.url, token=token)
                request = {"tool": f"effects.{tool}", "arguments": {"label": f"forbidden-{tool}"}}
                key = f"forbidden-{past.number}-{gateway.name}-{tool}-{len(ways)}-{number}"
                answer = await http.post("/v1/calls", request, Idempotency_Key=key)
                count += answer.status == 200
                http.close()
        await asyncio.sleep(0.05)
    return count_forbidden(count, await testbed.ledger.list_effects())


async def _try_new_gateway(sandbox: Sandbox, testbed: Testbed, dsn: str) -> bool:
    """Start a gateway on a machine without records: it must take the word of the one that found the loss."""
    try:
        await asyncio.wait_for(
            start_gateway(sandbox, dsn, testbed.issuer, name="c", tools="effects.py", env=testbed.gateways[0].env), 60
        )
    except Exception as refusal:  # noqa: BLE001 -- not ready in time, or ended: either is a refusal
        sandbox.log(f"a new gateway: {str(refusal).splitlines()[0][:80]}")
        return False
    return True


async def _repeat_keys(testbed: Testbed, keys: list[str]) -> str:
    http = HttpConnection.for_url(testbed.gateways[1].url, token=testbed.writer_token)
    statuses = {(await send_write(http, key)).status for key in keys[-50:]}
    http.close()
    return ",".join(map(str, sorted(statuses)))


async def _confirm(sandbox: Sandbox, testbed: Testbed) -> bool:
    """Confirm as an operator does, then wait until both gateways serve again."""
    gateway = testbed.gateways[0]
    token = testbed.issuer.issue_token("operator", scopes=("deputize:admin",))
    command = [sys.executable, "-m", "deputize", "recover", "confirm", "--json"]
    result = await sandbox.run_command(command, cwd=gateway.folder, env={**gateway.env, "DEPUTIZE_TOKEN": token})
    sandbox.log(f"deputize recover confirm: {result.stdout.strip() or result.stderr.strip()}")
    if result.code or not json.loads(result.stdout.splitlines()[0])["confirmed"]:
        return False
    for each in testbed.gateways:
        await each.child.wait_for_url(f"{each.url}/readyz", timeout=60)
    return True


async def _send_again(testbed: Testbed, keys: list[str]) -> Counter[str]:
    """Repeat the keys that the database does not know, as their callers would who got no answer."""
    http = HttpConnection.for_url(testbed.gateways[0].url, token=testbed.writer_token)
    answers = Counter([str((await send_write(http, key)).status) for key in keys])
    http.close()
    return answers


async def _state_one(testbed: Testbed, key: str) -> int:
    http = HttpConnection.for_url(testbed.gateways[0].url, token=testbed.writer_token)
    status = (await send_write(http, key, did_not_happen=True)).status
    http.close()
    return status


async def _try_variant(
    sandbox: Sandbox, testbed: Testbed, server: LocalPostgres, backup: LocalPostgres, keys: list[str]
) -> bool:
    """Restore once more under gateways that notice nothing: an acknowledged write then happens again."""
    for gateway in testbed.gateways:
        # One that notices would stop the other.
        await gateway.child.stop()
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(backup.start)
    await restart_as_variant(testbed.gateways[0], "restore_unnoticed")
    before = await testbed.ledger.list_effects()
    await _send_again(testbed, keys[:5])
    repeated = count_repeats(keys[:5], before, await testbed.ledger.list_effects())
    sandbox.log(f"unnoticed: {repeated} of 5 acknowledged writes happened again")
    for gateway in testbed.gateways:
        # The records are right about the database that this one replaced.
        shutil.rmtree(gateway.folder / ".deputize" / "lineage")
    return repeated > 0


async def _promote_standbys(sandbox: Sandbox, testbed: Testbed, count: int) -> dict[str, Figure]:
    """Kill the primary and promote its standby, again and again, at two addresses that every gateway knows."""
    primary = await sandbox.start_postgres("cell-0")
    ports = (primary.port, sandbox.pick_free_port())
    standby = await start_standby(sandbox, primary, "cell-1", ports[1])
    both_hosts = primary.dsn.replace(f":{ports[0]}/", f":{ports[0]},127.0.0.1:{ports[1]}/")
    dsn = f"{both_hosts}?target_session_attrs=read-write"
    (sandbox.folder / "master.key").unlink()
    gateway = await start_gateway(
        sandbox, dsn, testbed.issuer, name="promoted", tools="effects.py", env=testbed.gateways[0].env
    )
    async with run_load([gateway.url], testbed.writer_token, name="promoted", callers=4) as load:
        for number in range(count):
            await asyncio.sleep(1)
            await asyncio.to_thread(primary.kill)
            await promote_standby(standby)
            written = len(load.acknowledged)
            async with asyncio.timeout(60):
                while len(load.acknowledged) < written + 20:  # noqa: ASYNC110 -- many calls, one condition
                    await asyncio.sleep(0.05)
            port = next(each for each in ports if each != standby.port)
            primary, standby = standby, await start_standby(sandbox, standby, f"cell-{number + 2}", port)
    connection = await asyncpg.connect(primary.dsn)
    alarms = await connection.fetchval(_MARKED)
    found = await connection.fetchval(
        "select count(*) from deputize.calls where id = any($1::uuid[]) and state = 'succeeded'", load.call_ids
    )
    timeline = await connection.fetchval("select left(pg_walfile_name(pg_current_wal_lsn()), 8)")
    await connection.close()
    sandbox.log(f"{count} promotions (timeline {timeline}), {len(load.call_ids)} acknowledged, {found} found")
    return judge_promotions(count, alarms, len(load.call_ids), found)
