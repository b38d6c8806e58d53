"""Events of calls while their broker is killed again and again: none is lost, each call keeps its order, calls go on.

Writes are offered at a fixed rate, in rounds. In each round the broker, a real NATS server with JetStream, is killed
with SIGKILL and started again with what it had stored. Every round is paired with one on a gateway without sinks, on a
database of its own, and the p99 of both are compared. Afterwards every entry of the audit is looked for in the stream.
"""

import asyncio
import contextlib
import random
import shutil
import statistics
from dataclasses import dataclass
from typing import Any

import asyncpg
import nats
import orjson
from nats.errors import Error as NatsError

from deputize.store.migrate import upgrade_async
from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_login import create_gateway_login
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.load import Target
from proofs.kit.open_loop import run_open_loop
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.overhead.experiment import ARGUMENTS
from proofs.stream.judge import LoggedEntry, ReceivedEvent, compute_p99, judge_events

NAME = "stream"
PROMISE = "Every event reaches the broker in the order of its call, however often the broker dies, and no call waits."

RATE = 100.0
_STREAM = "deputize-events"
_SINK = """
[[events.sinks]]
name = "bus"
kind = "nats"
url = "nats://127.0.0.1:{port}"
start = "beginning"
"""
_BODY = orjson.dumps({"tool": "orders.place", "arguments": ARGUMENTS})
_HAS_LEFT = """
select exists (select from deputize.log_queue) or exists (
    select from deputize.log_leaves l where l.leaf_index >= coalesce((
        select p.next_index from deputize.event_positions p where p.tenant = l.tenant and p.sink = 'bus'), 0))
"""
_CATCH_UP_SECONDS = 300.0


@dataclass(kw_only=True, slots=True)
class Broker:
    """A NATS server that is killed and started again with its files."""

    sandbox: Sandbox
    port: int
    child: ChildProcess | None = None
    kills: int = 0

    async def start(self) -> None:
        program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if program is None:
            raise RuntimeError("nats-server is not installed: `apt-get install -y nats-server`, then run again.")
        folder = self.sandbox.folder / "nats"
        argv = [program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(folder)]
        self.child = await self.sandbox.start_process(f"nats-{self.kills}", argv, ready_line="Server is ready")

    async def die_and_return(self, *, after: float, pause: float) -> None:
        """Be killed after some seconds, and started again after a pause."""
        assert self.child is not None
        await asyncio.sleep(after)
        self.child.kill()
        await self.child.wait_for_exit()
        self.kills += 1
        await asyncio.sleep(pause)
        await self.start()

    async def read_events(self) -> list[ReceivedEvent]:
        """Read the whole stream, in its order."""
        client = await nats.connect(f"nats://127.0.0.1:{self.port}")
        try:
            stream = client.jetstream()
            count = (await stream.stream_info(_STREAM)).state.messages
            subscription = await stream.pull_subscribe("", stream=_STREAM, durable=f"reader-{self.kills}")
            events: list[ReceivedEvent] = []
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while len(events) < count:
                    with contextlib.suppress(NatsError, TimeoutError):
                        for message in await subscription.fetch(500, timeout=5):
                            # Else the server stops after a thousand, and sends them again.
                            await message.ack()
                            events.append(_parse_event(message.data))
            return events
        finally:
            await client.close()


async def prove(sandbox: Sandbox) -> Verdict:
    issuer, broker = create_issuer(), Broker(sandbox=sandbox, port=sandbox.pick_free_port())
    await broker.start()
    postgres = await sandbox.start_postgres()
    gateway = await start_gateway(
        sandbox, postgres.dsn, issuer, tools="orders.py", settings=_SINK.format(port=broker.port)
    )
    plain_gateway = None
    if sandbox.full:
        plain_postgres = await sandbox.start_postgres("postgres-plain")
        await upgrade_async(plain_postgres.dsn)
        await create_gateway_login(plain_postgres.dsn)
        plain_gateway = await start_gateway(sandbox, plain_postgres.dsn, issuer, name="plain", tools="orders.py")
    rounds, seconds = sandbox.pick_size(quick=2, full=20), sandbox.pick_size(quick=2, full=10)
    sandbox.log(f"{rounds} rounds of {RATE * seconds:g} calls, the broker killed in each")
    timings = await _run_rounds(broker, gateway, plain_gateway, issuer, rounds=rounds, seconds=seconds)
    sandbox.log("waiting until the sink has everything")
    catch_up = await _wait_until_sent(postgres.dsn)
    figures = judge_events(await _load_entries(postgres.dsn), await broker.read_events(), timings.calls)
    figures |= {"broker_kills": broker.kills, "catch_up_seconds": round(catch_up, 1), **timings.describe()}
    controls: dict[str, bool] = {}
    if sandbox.full:
        sandbox.log("control: the position moves without an acknowledgement")
        await restart_as_variant(gateway, "stream_unacknowledged")
        # Dead while calls go on, however long the load takes to begin.
        death = asyncio.create_task(broker.die_and_return(after=0.1 * seconds, pause=seconds))
        await _offer_calls(gateway, issuer, seconds)
        await death
        await _wait_until_sent(postgres.dsn)
        broken = judge_events(await _load_entries(postgres.dsn), await broker.read_events(), 0)
        figures["unacknowledged: events lost"] = broken["events_lost"]
        controls["stream_unacknowledged"] = int(broken["events_lost"]) > 0
    return Verdict(figures=figures, controls=controls)


@dataclass(kw_only=True, slots=True)
class Timings:
    """How long calls took, round by round, with a broker that dies and without any."""

    durations: list[list[float]]
    plain_durations: list[list[float]]

    @property
    def calls(self) -> int:
        return sum(len(each) for each in self.durations)

    def describe(self) -> dict[str, Figure]:
        """Describe the medians of the rounds' p99: one disturbance of the machine must not decide."""
        p99 = statistics.median(compute_p99(each) for each in self.durations)
        figures: dict[str, Figure] = {"p99_ms": round(p99, 2)}
        if self.plain_durations:
            plain_p99 = statistics.median(compute_p99(each) for each in self.plain_durations)
            figures |= {"plain_p99_ms": round(plain_p99, 2), "p99_of_plain": round(p99 / plain_p99, 3)}
        return figures


async def _run_rounds(
    broker: Broker,
    gateway: GatewayHandle,
    plain_gateway: GatewayHandle | None,
    issuer: Issuer,
    *,
    rounds: int,
    seconds: int,
) -> Timings:
    rng, timings = random.Random(7), Timings(durations=[], plain_durations=[])
    for number in range(rounds):
        after, pause = rng.uniform(0.3, 0.6) * seconds, rng.uniform(0.1, 0.3) * seconds

        async def run_with_deaths(after: float = after, pause: float = pause) -> None:
            death = asyncio.create_task(broker.die_and_return(after=after, pause=pause))
            timings.durations.append(await _offer_calls(gateway, issuer, seconds))
            await death

        async def run_without_sink() -> None:
            if plain_gateway is not None:
                timings.plain_durations.append(await _offer_calls(plain_gateway, issuer, seconds))

        # Which goes first changes, so that a drift of the machine favours neither.
        for run in (run_with_deaths, run_without_sink) if number % 2 else (run_without_sink, run_with_deaths):
            await run()
    return timings


async def _offer_calls(gateway: GatewayHandle, issuer: Issuer, seconds: int) -> list[float]:
    headers = {"authorization": f"Bearer {issuer.issue_token('ana', agent='bot')}", "content-type": "application/json"}
    target = Target(url=f"{gateway.url}/v1/calls", headers=headers, body=_BODY, unique_keys=True)
    return await run_open_loop(target, rate=RATE, seconds=seconds)


async def _wait_until_sent(dsn: str) -> float:
    """Wait until the sink has everything that is logged; return the seconds that took."""
    connection = await asyncpg.connect(dsn)
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(_CATCH_UP_SECONDS):
            while await connection.fetchval(_HAS_LEFT):  # noqa: ASYNC110 - no event in the database tells
                await asyncio.sleep(0.1)
    finally:
        await connection.close()
    return asyncio.get_running_loop().time() - began


async def _load_entries(dsn: str) -> list[LoggedEntry]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("select id, call_id, entry from deputize.audit_entries")
    finally:
        await connection.close()
    return [
        LoggedEntry(id=str(row["id"]), call_id=_to_text(row["call_id"]), kind=orjson.loads(row["entry"])["kind"])
        for row in rows
    ]


def _parse_event(body: bytes) -> ReceivedEvent:
    event: dict[str, Any] = orjson.loads(body)
    return ReceivedEvent(id=event["id"], call_id=event.get("call"), kind=event["data"]["entry"]["kind"])


def _to_text(value: object) -> str | None:
    return None if value is None else str(value)
