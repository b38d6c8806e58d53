"""One gateway that is killed and started again: its proxies, its client, and one kill from arming to retry.

Above: `crash_matrix`, which runs several lanes on one PostgreSQL and one ledger. Below: the kit's gateway, proxies
and ledger; `cells`, which says what to strike at. The gateway is killed with SIGKILL from outside.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx2
import orjson

from proofs.crash.cells import TAKEOVERS, Boundary, Cell, End, Tool
from proofs.crash.nursery import UNMODIFIED, Born, Nursery
from proofs.kit.child import Child
from proofs.kit.clientproxy import ClientProxy, Request
from proofs.kit.companions import LedgerHandle
from proofs.kit.gateway import GatewayHandle
from proofs.kit.ledger import kill_for_certain
from proofs.kit.pgproxy import PgProxy

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
_PATIENCE = 30.0
_ROW = """
select k.id, k.state, k.owner_epoch,
       exists (select from deputize.leases l
               where l.boot = k.owner and l.expires_at + make_interval(secs => $3) > now()) as owner_alive
from deputize.calls k where k.tenant = $1 and k.claim_key = $2
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    status: int
    body: bytes
    replayed: bool

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)
        return found

    @property
    def acknowledges(self) -> bool:
        return self.status == 200 and self.fields["state"] == "succeeded"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One kill and what came of it; `first` is what the client heard before the kill, if anything."""

    cell: Cell
    label: str
    evidence: str
    first: Reply | None
    retry: Reply
    end: End | str
    in_a_crowd: bool = False
    """Where it stood was read from its row, not chosen; how far its effect had come is anybody's guess."""


def _client() -> httpx2.AsyncClient:
    # No connection is kept: one from before a kill would lose the first request after it.
    return httpx2.AsyncClient(trust_env=False, timeout=_PATIENCE, limits=httpx2.Limits(max_keepalive_connections=0))


@dataclass(kw_only=True, slots=True)
class Lane:
    gateway: GatewayHandle
    nursery: Nursery
    pg: PgProxy
    front: ClientProxy
    ledger: LedgerHandle
    database: "asyncpg.Pool[asyncpg.Record]"
    token: str
    living: Child | Born
    module: str = UNMODIFIED
    kills: int = 0
    http: httpx2.AsyncClient = field(default_factory=_client)

    async def become(self, variant: str) -> None:
        """From here on, a gateway broken in this way."""
        self.module = f"proofs.variants.{variant}"
        await self.living.end()
        await self.revive()

    async def revive(self) -> None:
        """Start the gateway again, in its folder and on its port."""
        at = self.gateway
        self.living = await self.nursery.bear(at.folder, at.env, at.url, module=self.module)

    async def strike(self, cell: Cell, label: str) -> Observation:
        """Kill the gateway where the cell says, start it again, wait for what recovery there is, retry once."""
        if cell.boundary in TAKEOVERS:
            await self._kill_at(Cell(boundary=Boundary.AFTER_EFFECT, tool=cell.tool), label)
            await self.revive()
            await self.recovered(cell, label)
        first = await self._kill_at(cell, label)
        evidence = await self._evidence(label)
        await self.revive()
        await self.recovered(cell, label)
        retry, end = await self.retry(cell, label, first)
        return Observation(cell=cell, label=label, evidence=evidence, first=first, retry=retry, end=end)

    async def retry(self, cell: Cell, label: str, first: Reply | None) -> tuple[Reply, End | str]:
        """The one retry with the same key, and what it found."""
        retry = await self.call(cell, label)
        if retry is None:
            raise RuntimeError(f"{cell}: the retry got no answer, and nobody was killed")
        return retry, await self._end(cell, label, first, retry)

    async def _kill_at(self, cell: Cell, label: str) -> Reply | None:
        """Make the call that dies; returns when the gateway is gone, with what the client heard of it."""
        await self._arm(cell, label)
        calling = asyncio.create_task(self.call(cell, label))
        try:
            await self.living.gone(_PATIENCE)
        except TimeoutError:
            heard = await calling
            raise RuntimeError(f"{cell}: the boundary was not reached; the call ended with {heard}") from None
        finally:
            self.pg.disarm()
            self.front.disarm()
        await self.bury()
        return await calling

    async def bury(self) -> None:
        """Thousands die here: each is put away at once, while its number is still its own."""
        await self.living.end()
        self.kills += 1

    async def _arm(self, cell: Cell, label: str) -> None:
        def ours(request: Request) -> bool:
            return request.headers.get("idempotency-key") == label

        commits = "deputize.commit_entries(" if cell.tool is Tool.LOOK else "deputize.commit_calls("
        outcome = 1 if cell.tool is Tool.LOOK else 2
        match cell.boundary:
            case Boundary.BEFORE_REQUEST:
                self.front.arm(ours, 1, "before_request", self.kill)
            case Boundary.CLAIM_UNSENT:
                self.pg.arm(lambda sql: commits in sql, 1, "before_forward", self.kill)
            case Boundary.CLAIM_UNHEARD:
                self.pg.arm(lambda sql: commits in sql, 1, "after_commit_before_ack", self.kill)
            case Boundary.BEFORE_EFFECT:
                await self.ledger.arm("before_effect", self.living.pid, {"call": label})
            case Boundary.DURING_EFFECT:
                await self.ledger.arm("during_effect", self.living.pid, {"call": label})
            case Boundary.AFTER_EFFECT:
                await self.ledger.arm("after_effect", self.living.pid, {"call": label})
            case Boundary.OUTCOME_UNSENT:
                self.pg.arm(lambda sql: commits in sql, outcome, "before_forward", self.kill)
            case Boundary.OUTCOME_UNHEARD:
                self.pg.arm(lambda sql: commits in sql, outcome, "after_commit_before_ack", self.kill)
            case Boundary.BEFORE_REPLY:
                self.front.arm(ours, 1, "before_reply", self.kill)
            case Boundary.AFTER_REPLY:
                self.front.arm(ours, 1, "after_reply", self.kill)
            case Boundary.RETAKE_UNSENT:
                self.pg.arm(lambda sql: "deputize.retake_call(" in sql, 1, "before_forward", self.kill)
            case Boundary.RETAKE_UNHEARD:
                self.pg.arm(lambda sql: "deputize.retake_call(" in sql, 1, "after_commit_before_ack", self.kill)

    async def kill(self) -> None:
        kill_for_certain(self.living.pid)

    async def recovered(self, cell: Cell, label: str) -> None:
        """Wait until what the dead one left open is settled, or its owner known to be gone.

        A call that may be taken over need not wait for the sweeper.
        """
        async with asyncio.timeout(_PATIENCE):
            while True:
                row = await self.row(label)
                if row is None or row["state"] != "running":
                    return
                if cell.tool.deduplicates and not row["owner_alive"] and self.module == UNMODIFIED:
                    return
                await asyncio.sleep(0.05)

    async def _evidence(self, label: str) -> str:
        row = await self.row(label)
        if row is None:
            return "no row"
        known = await self.ledger.status(str(row["id"]))
        return f"{row['state']}, owner {row['owner_epoch']}, asked {known.attempts}, happened {len(known.sequences)}"

    async def _end(self, cell: Cell, label: str, first: Reply | None, retry: Reply) -> End | str:
        state = retry.fields.get("state")
        if state == "unknown" and retry.status == 504:
            return End.UNKNOWN
        if not retry.acknowledges:
            return f"{retry.status} {state} ({retry.fields.get('detail')})"
        row = await self.row(label)
        if cell.tool is Tool.LOOK:
            return End.ANEW if row is None and not retry.replayed else "a read with a row"
        if row is None or row["state"] != "succeeded":
            return "acknowledged, not stored"
        if retry.replayed:
            return await self._replay(first, retry)
        return End.TAKEN_OVER if row["owner_epoch"] > 1 else End.ANEW

    async def _replay(self, first: Reply | None, retry: Reply) -> End | str:
        """Byte for byte what the client heard the first time, and what the call's own page shows."""
        shown = await self.http.get(
            f"{self.gateway.url}/v1/calls/{retry.fields['call_id']}", headers={"authorization": f"Bearer {self.token}"}
        )
        same = retry.body == shown.content and (first is None or first.body == retry.body)
        return End.REPLAYED if same else "replayed in other bytes"

    async def row(self, label: str) -> asyncpg.Record | None:
        key = hashlib.sha256(label.encode()).digest()
        return await self.database.fetchrow(_ROW, TENANT, key, MARGIN_SECONDS)

    async def call(self, cell: Cell, label: str) -> Reply | None:
        """One call through the client's proxy; none if the connection ended before a whole answer."""
        arguments: dict[str, Any] = {"label": label}
        if cell.delay_ms is not None:
            arguments["delay_ms"] = cell.delay_ms
        try:
            response = await self.http.post(
                f"{self.front.url}/v1/calls",
                json={"tool": f"effects.{cell.tool}", "arguments": arguments},
                headers={"authorization": f"Bearer {self.token}", "idempotency-key": label},
            )
        except httpx2.TransportError:
            return None
        return Reply(
            status=response.status_code,
            body=response.content,
            replayed=response.headers.get("idempotency-replayed") == "true",
        )
