"""Send a scripted week through a gateway that observes, read the report, and enforce the policy it wrote.

Calls are made at the time of the script: the gateway's clock reads the time of the task that asks. The week lies ahead,
because the database has partitions for coming days.
"""

import asyncio
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import orjson

from deputize.app import open_gateway
from deputize.core.call import CallRequest
from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.core.clock import Clock
from deputize.core.settings import DatabaseSettings, KeySettings, McpServerSettings, Settings
from deputize.core.settings.identity import IdentitySettings
from deputize.core.settings.policy import PolicySettings
from deputize.core.states import State
from deputize.govern.identity.dev_issuer import load_dev_issuer, mint_dev_token
from deputize.govern.observation.observed_call import parse_call
from deputize.govern.observation.report import find_odd_calls
from deputize.govern.observation.sequence_rules import find_unusual_sequences
from deputize.govern.observation.usage_rules import find_unusual_usage
from deputize.operations.gateway import Gateway
from deputize.store.migrate import upgrade_async
from proofs.kit.gateway_internals import get_runtime
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.observe import stdio_server
from proofs.observe.week import BEYOND_RULES, DAY_MS, MONDAY_MS, PLANTS, ScriptedCall, Week, script_week

NAME = "observe"
PROMISE = "A report of observed calls names what is unusual and hardly anything else, and the policy it writes fits."
_CONTROL: Final = "no rules about arguments"
_ODDITIES: Final = 12
_AT_ONCE: Final = 8
_LIFETIME_SECONDS: Final = 60 * 86_400
_PROBE_SECONDS: Final = 90
# Servers have no prices, and a chain of agents needs a delegation.
_KINDS: Final = frozenset(PLANTS) - {"expensive", "unusual-chain"}
_STARTER: Final = Path(stdio_server.__file__).parents[2] / "src/deputize/interfaces/cli/local/starter/observe.cedar"
_time_ms: ContextVar[int] = ContextVar("time_ms", default=0)


async def prove(sandbox: Sandbox) -> Verdict:
    seed = int(os.environ.get("PROOF_SEED", "0")) or (random.randrange(1, 1_000_000) if sandbox.full else 7)
    now_ms = Clock().epoch_ms()
    monday_ms = MONDAY_MS + (now_ms - MONDAY_MS) // (7 * DAY_MS) * 7 * DAY_MS + 7 * DAY_MS
    sizes = {"calls": sandbox.pick_size(quick=1_000, full=5_000), "oddities": _ODDITIES}
    week = script_week(seed, **sizes, kinds=_KINDS, shift_ms=monday_ms - MONDAY_MS)
    sandbox.log(f"seed {seed}: {len(week.calls)} calls, planted {', '.join(sorted(week.kinds))}")
    dsn = await _make_database(sandbox)
    since = datetime.fromtimestamp(monday_ms / 1000, UTC)
    async with _open(sandbox, dsn, _STARTER) as gateway:
        call_ids = await _make_calls(sandbox, gateway, week.calls)
        observation, payload = await _report(sandbox, gateway, since)
    named, false_alarms = _judge(week, call_ids, observation["unusual"])
    drafted_file = sandbox.folder / "observed.cedar"
    drafted_file.write_text(observation["policy"]["text"], encoding="utf-8")
    repeats = _pick_repeats(week, None if sandbox.full else 150, seed)
    async with _open(sandbox, dsn, drafted_file) as gateway:
        states = await _make_calls(sandbox, gateway, repeats, want="state")
    stopped = [call for call, state in zip(repeats, states, strict=True) if not call.kind and _is_stopped(state)]
    asked = {call.kind for call, state in zip(repeats, states, strict=True) if call.kind and _is_stopped(state)}
    missed_kinds = set(week.kinds) - BEYOND_RULES - asked
    return Verdict(
        figures={
            "seed": seed,
            "calls": len(week.calls),
            "planted": len(week.kinds),
            "kinds": len(_KINDS),
            "planted_not_named": _ODDITIES - len(named & set(week.kinds)),
            "false_alarms_percent": round(100 * len(false_alarms) / len(week.calls), 3),
            "ordinary_calls_stopped": len(stopped),
            "planted_kinds_allowed": len(missed_kinds),
            "repeated_calls": len(repeats),
        },
        controls={_CONTROL: _catch_control(week, call_ids, payload)},
        notes=[
            *(f"not named: {kind}" for kind in sorted(set(week.kinds) - named)),
            *(f"false alarm: {each}" for each in false_alarms[:10]),
            *(f"stopped: {each.tool} of {each.agent} {dict(each.arguments)}" for each in stopped[:10]),
            *(f"allowed: {kind}" for kind in sorted(missed_kinds)),
        ],
    )


async def _make_database(sandbox: Sandbox) -> str:
    postgres = await sandbox.start_postgres()
    await upgrade_async(postgres.dsn)
    connection = await asyncpg.connect(postgres.dsn)
    try:
        await connection.execute("call deputize.create_partitions(25)")
    finally:
        await connection.close()
    return postgres.dsn


@asynccontextmanager
async def _open(sandbox: Sandbox, dsn: str, policy_file: Path) -> AsyncIterator[Gateway]:
    """Open a gateway with six servers and one policy, whose clock reads the time of each task."""
    folder = sandbox.folder / "state"
    folder.mkdir(exist_ok=True)
    script = Path(shutil.copyfile(stdio_server.__file__, sandbox.folder / "stdio_server.py"))
    clock = Clock(epoch_ms=lambda: _time_ms.get() or Clock().epoch_ms())
    servers = tuple(
        McpServerSettings(name=name, command=(sys.executable, str(script), name), record_arguments=True,
                          start_seconds=_PROBE_SECONDS, sandbox=False, probe_seconds=3600, recheck_seconds=3600)
        for name in stdio_server.TOOLS
    )  # fmt: skip
    settings = Settings(
        folder=folder,
        database=DatabaseSettings(url=dsn),  # type: ignore[arg-type]  # pydantic makes the secret of it
        identity=IdentitySettings(issuers=(load_dev_issuer(folder),)),
        keys=KeySettings(master_file=folder / "master.key"),
        policy=PolicySettings(files=(str(policy_file),)),
        servers=servers,
    )
    async with open_gateway(settings, tools=(), development=True, clock=clock) as gateway:
        admin = await _authenticate(sandbox, gateway, "root", None, (ADMIN_SCOPE,))
        async with asyncio.timeout(_PROBE_SECONDS):
            for name in stdio_server.TOOLS:
                await gateway.servers.probe_server(admin, name)
        yield gateway


async def _authenticate(
    sandbox: Sandbox, gateway: Gateway, user: str, agent: str | None, scopes: Sequence[str]
) -> Caller:
    token = mint_dev_token(
        sandbox.folder / "state", subject=user, agent=agent, scopes=scopes, lifetime=_LIFETIME_SECONDS
    )
    return await gateway.authenticate(f"Bearer {token}".encode())


async def _make_calls(
    sandbox: Sandbox, gateway: Gateway, calls: Sequence[ScriptedCall], want: str = "call_id"
) -> list[Any]:
    """Make the calls, a few at once, each at its own time, and return one attribute of each outcome."""
    scopes = tuple(f"{name}:write" for name in stdio_server.TOOLS)
    pairs = sorted({(call.user, call.agent) for call in calls})
    callers = {pair: await _authenticate(sandbox, gateway, *pair, scopes) for pair in pairs}
    answers: list[Any] = [None] * len(calls)
    waiting = iter(enumerate(calls))

    async def work() -> None:
        for number, call in waiting:
            _time_ms.set(call.at_ms)
            request = CallRequest(
                tool=call.tool, arguments=dict(call.arguments), idempotency_key=f"{want}-{number}-{call.at_ms}"
            )
            outcome = await gateway.run_call(callers[call.user, call.agent], request)
            answers[number] = getattr(outcome, want)

    await asyncio.gather(*(asyncio.create_task(work()) for _ in range(_AT_ONCE)))
    return answers


async def _report(sandbox: Sandbox, gateway: Gateway, since: datetime) -> tuple[dict[str, Any], bytes]:
    """Get the report, and the calls that it was made from."""
    admin = await _authenticate(sandbox, gateway, "root", None, (ADMIN_SCOPE,))
    jobs, payloads = get_runtime(gateway).admin_jobs, list[bytes]()
    run_job = jobs.run_job

    async def keep_payload(tenant: str, job: Any, payload: bytes, **options: Any) -> bytes | None:
        payloads.append(payload)
        return await run_job(tenant, job, payload, **options)

    jobs.run_job = keep_payload  # type: ignore[method-assign]  # the same function, and what it was given
    return await gateway.observations.report_calls(admin, since), payloads[-1]


def _judge(week: Week, call_ids: Sequence[str], unusual: Sequence[dict[str, Any]]) -> tuple[set[str], list[str]]:
    """Return the kinds that were named on a call that was planted for them, and the ordinary calls that were named."""
    kinds = {call_id: call.kind for call_id, call in zip(call_ids, week.calls, strict=True)}
    named: set[str] = set()
    false_alarms: list[str] = []
    for each in unusual:
        names = {oddity["kind"] for oddity in each["oddities"]}
        kind = kinds.get(each["call_id"], "")
        named |= names & {kind}
        if not kind:
            false_alarms.append(f"{each['tool']} {'; '.join(oddity['reason'] for oddity in each['oddities'])}")
    return named, false_alarms


def _catch_control(week: Week, call_ids: Sequence[str], payload: bytes) -> bool:
    """Judge the same calls without the rules about arguments; true if something planted is missed then."""
    calls = sorted(map(parse_call, orjson.loads(payload)), key=lambda call: (call.at_ms, call.call_id))
    odd_calls = find_odd_calls(calls, (find_unusual_usage, find_unusual_sequences))
    named, _ = _judge(week, call_ids, odd_calls.to_json(calls))
    return not set(week.kinds) <= named


def _pick_repeats(week: Week, ordinary_count: int | None, seed: int) -> list[ScriptedCall]:
    """Pick the calls that are made again a week later: all that were planted, and ordinary ones."""
    ordinary_calls = [call for call in week.calls if not call.kind]
    if ordinary_count is not None:
        ordinary_calls = random.Random(seed).sample(ordinary_calls, ordinary_count)
    planted_calls = [call for call in week.calls if call.kind and call.kind not in BEYOND_RULES]
    return [_move_week(call) for call in sorted([*ordinary_calls, *planted_calls], key=lambda call: call.at_ms)]


def _move_week(call: ScriptedCall) -> ScriptedCall:
    return replace(call, at_ms=call.at_ms + 7 * DAY_MS)


def _is_stopped(state: State) -> bool:
    return state in (State.AWAITING_APPROVAL, State.DENIED, State.BLOCKED)
