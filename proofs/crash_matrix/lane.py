"""One gateway that is killed and started again: its proxies, its client, and one kill from arming to retry.

The gateway is killed with SIGKILL from outside.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx2
import orjson

from proofs.crash_matrix.matrix import TAKEOVERS, Boundary, Cell, EffectTool, RetryEnd
from proofs.kit.child_process import ChildProcess
from proofs.kit.client_proxy import ClientProxy, Request
from proofs.kit.fork_server import DEPUTIZE_MODULE, ForkedProcess, ForkServer
from proofs.kit.gateway import GatewayHandle
from proofs.kit.helper_servers import LedgerHandle
from proofs.kit.ledger import kill_and_wait
from proofs.kit.postgres_proxy import PgProxy

TENANT = "acme"
MARGIN_SECONDS = 0.2
# Short, so that recovery is quick; shorter still, and a busy machine cannot renew a lease in time: the gateway then
# rightly starts nothing, and what is being tried here is not reached.
SETTINGS = f"""
[timing]
lease_seconds = 3.0
sweep_seconds = 0.1
margin_seconds = {MARGIN_SECONDS}
"""
_TIMEOUT_SECONDS = 30.0
_ROW = """
select k.id, k.state, k.owner_epoch,
       exists (select from deputize.claims c where c.tenant = k.tenant and c.call_id = k.id) as holds_key,
       exists (select from deputize.leases l
               where l.boot = k.owner and l.expires_at + make_interval(secs => $3) > now()) as owner_alive
from deputize.calls k where k.tenant = $1 and k.claim_key = $2
order by k.id desc limit 1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneReply:
    status: int
    body: bytes
    is_replay: bool

    @property
    def json_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = orjson.loads(self.body)
        return fields

    @property
    def is_acknowledgement(self) -> bool:
        return self.status == 200 and self.json_fields["state"] == "succeeded"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One kill and what came of it; `first` is what the client heard before the kill, if anything."""

    cell: Cell
    label: str
    evidence: str
    first: LaneReply | None
    retry: LaneReply
    end: RetryEnd | str
    is_concurrent: bool = False
    """Where it stood was read from its row, not chosen; how far its effect had come is anybody's guess."""


def _create_client() -> httpx2.AsyncClient:
    # No connection is kept: one from before a kill would lose the first request after it.
    return httpx2.AsyncClient(
        trust_env=False, timeout=_TIMEOUT_SECONDS, limits=httpx2.Limits(max_keepalive_connections=0)
    )


@dataclass(kw_only=True, slots=True)
class Lane:
    gateway: GatewayHandle
    fork_server: ForkServer
    postgres_proxy: PgProxy
    client_proxy: ClientProxy
    ledger: LedgerHandle
    database: "asyncpg.Pool[asyncpg.Record]"
    token: str
    process: ChildProcess | ForkedProcess
    module: str = DEPUTIZE_MODULE
    kills: int = 0
    http: httpx2.AsyncClient = field(default_factory=_create_client)

    async def switch_to_variant(self, variant: str) -> None:
        """From here on, a gateway broken in this way."""
        self.module = f"proofs.variants.{variant}"
        await self.process.close()
        await self.restart_gateway()

    async def restart_gateway(self) -> None:
        """Start the gateway again, in its folder and on its port."""
        handle = self.gateway
        self.process = await self.fork_server.fork_process(handle.folder, handle.env, handle.url, module=self.module)

    async def kill_and_retry(self, cell: Cell, label: str) -> Observation:
        """Kill the gateway where the cell says, start it again, wait for what recovery there is, retry once."""
        if cell.boundary in TAKEOVERS:
            await self._kill_at(Cell(boundary=Boundary.AFTER_EFFECT, tool=cell.tool), label)
            await self.restart_gateway()
            await self.wait_for_recovery(cell, label)
        first = await self._kill_at(cell, label)
        evidence = await self._read_evidence(label)
        await self.restart_gateway()
        await self.wait_for_recovery(cell, label)
        retry, end = await self.retry_call(cell, label, first)
        return Observation(cell=cell, label=label, evidence=evidence, first=first, retry=retry, end=end)

    async def retry_call(self, cell: Cell, label: str, first: LaneReply | None) -> tuple[LaneReply, RetryEnd | str]:
        """The one retry with the same key, and what it found."""
        retry = await self.send_call(cell, label)
        if retry is None:
            raise RuntimeError(f"{cell}: the retry got no answer, and nobody was killed")
        return retry, await self._classify_end(cell, label, first, retry)

    async def _kill_at(self, cell: Cell, label: str) -> LaneReply | None:
        """Make the call that dies; returns when the gateway is gone, with what the client heard of it."""
        await self._arm_kill(cell, label)
        call_task = asyncio.create_task(self.send_call(cell, label))
        try:
            await self.process.wait_for_exit(_TIMEOUT_SECONDS)
        except TimeoutError:
            reply = await call_task
            raise RuntimeError(f"{cell}: the boundary was not reached; the call ended with {reply}") from None
        finally:
            self.postgres_proxy.disarm()
            self.client_proxy.disarm()
        await self.discard_process()
        return await call_task

    async def discard_process(self) -> None:
        """Thousands die here: each is put away at once, while its number is still its own."""
        await self.process.close()
        self.kills += 1

    async def _arm_kill(self, cell: Cell, label: str) -> None:
        def is_ours(request: Request) -> bool:
            return request.headers.get("idempotency-key") == label

        commits = "deputize.commit_entries(" if cell.tool is EffectTool.LOOK else "deputize.commit_calls("
        outcome = 1 if cell.tool is EffectTool.LOOK else 2
        match cell.boundary:
            case Boundary.BEFORE_REQUEST:
                self.client_proxy.arm(is_ours, 1, "before_request", self.kill_gateway)
            case Boundary.CLAIM_UNSENT:
                self.postgres_proxy.arm(lambda sql: commits in sql, 1, "before_forward", self.kill_gateway)
            case Boundary.CLAIM_UNHEARD:
                self.postgres_proxy.arm(lambda sql: commits in sql, 1, "after_commit_before_ack", self.kill_gateway)
            case Boundary.BEFORE_EFFECT:
                await self.ledger.arm_kill("before_effect", self.process.pid, {"call": label})
            case Boundary.DURING_EFFECT:
                await self.ledger.arm_kill("during_effect", self.process.pid, {"call": label})
            case Boundary.AFTER_EFFECT:
                await self.ledger.arm_kill("after_effect", self.process.pid, {"call": label})
            case Boundary.OUTCOME_UNSENT:
                self.postgres_proxy.arm(lambda sql: commits in sql, outcome, "before_forward", self.kill_gateway)
            case Boundary.OUTCOME_UNHEARD:
                self.postgres_proxy.arm(
                    lambda sql: commits in sql, outcome, "after_commit_before_ack", self.kill_gateway
                )
            case Boundary.BEFORE_REPLY:
                self.client_proxy.arm(is_ours, 1, "before_reply", self.kill_gateway)
            case Boundary.AFTER_REPLY:
                self.client_proxy.arm(is_ours, 1, "after_reply", self.kill_gateway)
            case Boundary.RETAKE_UNSENT:
                self.postgres_proxy.arm(
                    lambda sql: "deputize.take_over_call(" in sql, 1, "before_forward", self.kill_gateway
                )
            case Boundary.RETAKE_UNHEARD:
                self.postgres_proxy.arm(
                    lambda sql: "deputize.take_over_call(" in sql, 1, "after_commit_before_ack", self.kill_gateway
                )

    async def kill_gateway(self) -> None:
        kill_and_wait(self.process.pid)

    async def wait_for_recovery(self, cell: Cell, label: str) -> None:
        """Wait until what the dead one left open is settled, or its owner known to be gone.

        A call that may be taken over need not wait for the sweeper.
        """
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while True:
                row = await self.fetch_row(label)
                if row is None or row["state"] != "running":
                    return
                if cell.tool.deduplicates and not row["owner_alive"] and self.module == DEPUTIZE_MODULE:
                    return
                await asyncio.sleep(0.05)

    async def _read_evidence(self, label: str) -> str:
        row = await self.fetch_row(label)
        if row is None:
            return "no row"
        status = await self.ledger.get_status(str(row["id"]))
        return f"{row['state']}, owner {row['owner_epoch']}, asked {status.attempts}, happened {len(status.sequences)}"

    async def _classify_end(self, cell: Cell, label: str, first: LaneReply | None, retry: LaneReply) -> RetryEnd | str:
        state = retry.json_fields.get("state")
        if state == "unknown" and retry.status == 504:
            return RetryEnd.UNKNOWN
        if not retry.is_acknowledgement:
            return f"{retry.status} {state} ({retry.json_fields.get('detail')})"
        row = await self.fetch_row(label)
        if cell.tool is EffectTool.LOOK:
            return RetryEnd.ANEW if row is None and not retry.is_replay else "a read with a row"
        if row is None or row["state"] != "succeeded":
            return "acknowledged, not stored"
        if retry.is_replay:
            return await self._check_replay(first, retry)
        return RetryEnd.TAKEN_OVER if row["owner_epoch"] > 1 else RetryEnd.ANEW

    async def _check_replay(self, first: LaneReply | None, retry: LaneReply) -> RetryEnd | str:
        """Byte for byte what the client heard the first time, and what the call's own page shows."""
        stored_call = await self.http.get(
            f"{self.gateway.url}/v1/calls/{retry.json_fields['call_id']}",
            headers={"authorization": f"Bearer {self.token}"},
        )
        is_same = retry.body == stored_call.content and (first is None or first.body == retry.body)
        return RetryEnd.REPLAYED if is_same else "replayed in other bytes"

    async def fetch_row(self, label: str) -> asyncpg.Record | None:
        key = hashlib.sha256(label.encode()).digest()
        return await self.database.fetchrow(_ROW, TENANT, key, MARGIN_SECONDS)

    async def send_call(self, cell: Cell, label: str) -> LaneReply | None:
        """One call through the client's proxy; none if the connection ended before a whole answer."""
        arguments: dict[str, Any] = {"label": label}
        if cell.delay_ms is not None:
            arguments["delay_ms"] = cell.delay_ms
        try:
            response = await self.http.post(
                f"{self.client_proxy.url}/v1/calls",
                json={"tool": f"effects.{cell.tool}", "arguments": arguments},
                headers={"authorization": f"Bearer {self.token}", "idempotency-key": label},
            )
        except httpx2.TransportError:
            return None
        return LaneReply(
            status=response.status_code,
            body=response.content,
            is_replay=response.headers.get("idempotency-replayed") == "true",
        )
