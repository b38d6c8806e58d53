"""Kills in undos and in retries: afterwards the time of every key ends, and everybody asks again.

However often that is, the ledger has one refund of a payment and one payment of an order. A gateway that forgets what
its undos take back is the control.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg

from proofs.crash_matrix.lane import SETTINGS
from proofs.kit.child_process import ChildProcess
from proofs.kit.fork_server import DEPUTIZE_MODULE, ForkedProcess, ForkServer
from proofs.kit.gateway import GatewayHandle, Issuer, start_gateway, start_worker
from proofs.kit.helper_servers import LedgerHandle
from proofs.kit.http_client import HttpConnection
from proofs.kit.ledger import kill_and_wait
from proofs.kit.postgres_proxy import PgProxy
from proofs.kit.sandbox import Sandbox

_TIMEOUT_SECONDS: Final = 30.0
# Where the gateway dies: at the nth commit of a function, before or after PostgreSQL has it, or around the effect.
UNDO_POINTS: Final = (
    "commit_calls 1 before_forward", "commit_calls 1 after_commit_before_ack", "before_effect", "during_effect",
    "after_effect", "commit_calls 2 before_forward", "commit_calls 2 after_commit_before_ack",
)  # fmt: skip
# What a worker does of a retry is like any run: `recovery`.
RETRY_POINTS: Final = ("queue_runs 1 before_forward", "queue_runs 1 after_commit_before_ack")
_NONE_OPEN = "select not exists (select from deputize.calls where state in ('queued', 'running'))"
_END_WINDOWS = (
    "update deputize.calls set window_ends = now() - interval '1 second' where state not in ('queued', 'running')"
)
_NEWEST_UNDO = "select id::text from deputize.calls where tool = 'payments.refund' order by id desc limit 1"


@dataclass(kw_only=True, slots=True)
class UndoLane:
    """One gateway that is killed in undos and retries, and started again."""

    gateway: GatewayHandle
    fork_server: ForkServer
    postgres_proxy: PgProxy
    ledger: LedgerHandle
    database: "asyncpg.Pool[asyncpg.Record]"
    person: str
    agent: str
    bank_closed: Path
    process: ChildProcess | ForkedProcess
    module: str = DEPUTIZE_MODULE
    kills: int = 0
    wrong: list[str] = field(default_factory=list)

    async def kill_undo(self, point: str, label: str) -> None:
        """Kill the gateway in an undo; then undo and retry again, long after."""
        paid = await self._send("/v1/calls", {"tool": "payments.pay", "arguments": {"label": label}}, key=label)
        await self._kill_at(point, label, lambda: self._undo(paid["call_id"]))
        await self._end_windows()
        await self._undo(paid["call_id"])
        undo_id = await self.database.fetchval(_NEWEST_UNDO)
        if undo_id is not None:
            await self._send(f"/v1/calls/{undo_id}/retry", {})
        await self._end_windows()
        await self._undo(paid["call_id"])
        counts = await self._count(label)
        # What was begun and may have acted is never begun again.
        is_lost = point in ("commit_calls 1 after_commit_before_ack", "before_effect")
        if counts["refund"] != (0 if is_lost else 1):
            self.wrong.append(f"{label}: killed at {point}, {counts['refund']} refunds")

    async def kill_retry(self, point: str, label: str) -> None:
        """Kill the gateway in the retry of a failed payment; then let its agent repeat the key, and retry again."""
        order = {"tool": "payments.pay", "arguments": {"label": label}, "mode": "async"}
        self.bank_closed.touch()
        failed = await self._send("/v1/calls", order, key=label, token=self.agent)
        await self._wait_until_ended()
        self.bank_closed.unlink()
        retry = f"/v1/calls/{failed['call_id']}/retry"
        await self._kill_at(point, label, lambda: self._send(retry, {}))
        await self._wait_until_ended()
        await self._send("/v1/calls", order, key=label, token=self.agent)
        for _ in range(2):
            await self._end_windows()
            await self._send(retry, {})
        await self._wait_until_ended()
        counts = await self._count(label)
        if counts["pay"] != 1:
            self.wrong.append(f"{label}: killed at {point}, {counts['pay']} payments")

    async def switch_to_variant(self, variant: str) -> None:
        self.module = f"proofs.variants.{variant}"
        await self.process.close()
        await self._restart()

    async def _undo(self, call_id: str) -> dict[str, Any]:
        plan = await self._send("/v1/undo/plan", {"call_id": call_id})
        return await self._send("/v1/undo", {"call_id": call_id, "digest": plan["digest"]})

    async def _send(self, path: str, value: Any, *, key: str | None = None, token: str | None = None) -> dict[str, Any]:
        http = HttpConnection.for_url(self.gateway.url, token=token or self.person)
        try:
            answer = await http.post(path, value, **({} if key is None else {"idempotency_key": key}))
        finally:
            http.close()
        fields: dict[str, Any] = answer.json()
        return fields

    async def _kill_at(self, point: str, label: str, act: Callable[[], Awaitable[object]]) -> None:
        words = point.split()
        if len(words) == 1:
            await self.ledger.arm_kill(point, self.process.pid, {"call": label})  # type: ignore[arg-type]  # a point
        else:
            function, number, moment = words
            self.postgres_proxy.arm(
                lambda sql: f"deputize.{function}(" in sql,
                int(number),
                moment,  # type: ignore[arg-type]  # a point
                self._kill_gateway,
            )
        task = asyncio.ensure_future(act())
        try:
            await self.process.wait_for_exit(_TIMEOUT_SECONDS)
        finally:
            self.postgres_proxy.disarm()
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError):
            await task
        await self.process.close()
        self.kills += 1
        await self._restart()

    async def _kill_gateway(self) -> None:
        kill_and_wait(self.process.pid)

    async def _restart(self) -> None:
        handle = self.gateway
        self.process = await self.fork_server.fork_process(handle.folder, handle.env, handle.url, module=self.module)

    async def _wait_until_ended(self) -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while True:
                if await self.database.fetchval(_NONE_OPEN):
                    return
                await asyncio.sleep(0.05)

    async def _end_windows(self) -> None:
        await self._wait_until_ended()
        await self.database.execute(_END_WINDOWS)

    async def _count(self, label: str) -> Counter[str]:
        return Counter(each.tool for each in await self.ledger.list_effects() if each.call == label)


async def open_undo_lane(
    sandbox: Sandbox, dsn: str, ledger: LedgerHandle, fork_server: ForkServer, issuer: Issuer
) -> UndoLane:
    """Open a gateway of its own, on a database of its own: the time of every key there ends again and again."""
    postgres_proxy = PgProxy(dsn)
    await postgres_proxy.__aenter__()
    sandbox.add_cleanup(postgres_proxy.__aexit__)
    bank_closed = sandbox.folder / "bank-closed"
    env = {"PROOF_LEDGER": ledger.url, "PROOF_CLOSED": str(bank_closed)}
    gateway = await start_gateway(
        sandbox, postgres_proxy.dsn, issuer, name="undo-lane", tools="payments.py", settings=SETTINGS, env=env,
        migrate_dsn=dsn,
    )  # fmt: skip
    await start_worker(gateway)
    database = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
    sandbox.add_cleanup(database.close)
    scopes = ("proof:write", "deputize:undo")
    return UndoLane(
        gateway=gateway, fork_server=fork_server, postgres_proxy=postgres_proxy, ledger=ledger, database=database,
        person=issuer.issue_token("ann", scopes=scopes), agent=issuer.issue_token("ann", agent="bot"),
        bank_closed=bank_closed, process=gateway.child,
    )  # fmt: skip


async def kill_undos(lane: UndoLane, rounds: int) -> None:
    for number in range(rounds):
        for place, point in enumerate(UNDO_POINTS):
            await lane.kill_undo(point, f"undo-{number}-{place}")
        for place, point in enumerate(RETRY_POINTS):
            await lane.kill_retry(point, f"retry-{number}-{place}")


async def catch_forgetful(lane: UndoLane) -> bool:
    """Strike the control where it is broken; true if it is caught."""
    await lane.switch_to_variant("crash_undo_by_attempt")
    found = len(lane.wrong)
    await lane.kill_undo("after_effect", "control-undo")
    return len(lane.wrong) > found
