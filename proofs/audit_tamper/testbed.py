"""Three gateways on one database, a witness of their log, and a hand that kills any of them."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from deputize.evidence.log.signed_note import VerifierKey
from deputize.store.local_postgres import LocalPostgres
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox
from proofs.overhead.experiment import ARGUMENTS
from tests.support.witness.witness_process import WitnessProcess

TENANT: Final = "acme"
_WITNESS: Final = """
[[log.witnesses]]
key = "{key}"
url = "{url}"
"""
_WAIT_SECONDS: Final = 300.0
_IS_COMPLETE: Final = """
select not exists (select from deputize.log_queue)
   and (select max(leaf_index) + 1 from deputize.log_leaves)
     = (select max(size) from deputize.log_witnessed_checkpoints)
"""


@dataclass(kw_only=True, slots=True)
class Testbed:
    """What runs, and what was killed."""

    sandbox: Sandbox
    postgres: LocalPostgres
    issuer: Issuer
    witness: WitnessProcess
    log_keys: list[VerifierKey] = field(default_factory=list)
    gateways: list[GatewayHandle] = field(default_factory=list)
    boots: dict[str, GatewayHandle] = field(default_factory=dict)
    """Which gateway each lease in the database belongs to."""
    kills: dict[str, int] = field(default_factory=lambda: {"gateway": 0, "sequencer": 0, "postgres": 0})

    @property
    def caller_token(self) -> str:
        return self.issuer.issue_token("ana", agent="bot")

    @property
    def auditor_token(self) -> str:
        return self.issuer.issue_token("auditor", scopes=("deputize:admin",))

    async def start_gateway(self, name: str) -> GatewayHandle:
        """Start a gateway that has its log witnessed."""
        settings = _WITNESS.format(key=self.witness.key, url=self.witness.url)
        gateway = await start_gateway(
            self.sandbox, self.postgres.dsn, self.issuer, name=name, tools="orders.py", settings=settings
        )
        self.gateways.append(gateway)
        await self._note_boot(gateway)
        return gateway

    async def kill(self, target: str, number: int) -> None:
        """Kill a gateway, the one that sequences, or PostgreSQL, and start it again."""
        self.kills[target] += 1
        if target == "postgres":
            await asyncio.to_thread(self.postgres.kill)
            await asyncio.to_thread(self.postgres.start)
            return
        gateway = self.gateways[number % len(self.gateways)]
        if target == "sequencer":
            gateway = await self._find_sequencer() or gateway
        gateway.child.kill()
        await gateway.child.wait_for_exit()
        await gateway.restart()
        await self._note_boot(gateway)

    async def wait_until_witnessed(self) -> int:
        """Wait until every entry is in the log and the newest checkpoint is cosigned; return the log's size."""
        connection = await asyncpg.connect(self.postgres.dsn)
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while not await connection.fetchval(_IS_COMPLETE):  # noqa: ASYNC110 - no event in the database tells
                    await asyncio.sleep(0.1)
            size: int = await connection.fetchval("select max(size) from deputize.log_witnessed_checkpoints")
            return size
        finally:
            await connection.close()

    async def _find_sequencer(self) -> GatewayHandle | None:
        """Find the gateway whose process holds the lease; one that has none yet cannot be told from the others."""
        async with asyncio.timeout(_WAIT_SECONDS):
            while True:
                owner = await self._fetch("select owner from deputize.log_sequencer where expires_at > now()")
                if owner:
                    return self.boots.get(owner[0])
                await asyncio.sleep(0.05)

    async def _note_boot(self, gateway: GatewayHandle) -> None:
        for boot in await self._fetch("select boot from deputize.leases"):
            self.boots.setdefault(boot, gateway)

    async def _fetch(self, query: str) -> list[str]:
        connection = await asyncpg.connect(self.postgres.dsn)
        try:
            return [str(row[0]) for row in await connection.fetch(query)]
        finally:
            await connection.close()


async def start_testbed(sandbox: Sandbox, *, gateways: int) -> Testbed:
    """Start gateways, and a witness as soon as their log has a key that it can know."""
    postgres, issuer = await sandbox.start_postgres(), create_issuer()
    witness = await asyncio.to_thread(WitnessProcess)
    testbed = Testbed(sandbox=sandbox, postgres=postgres, issuer=issuer, witness=witness)
    first = await testbed.start_gateway("gateway-0")
    http = HttpConnection.for_url(first.url, token=testbed.caller_token)
    answer = await http.post("/v1/calls", {"tool": "orders.place", "arguments": ARGUMENTS})
    http.close()
    if answer.status != 200:
        raise RuntimeError(f"the first call was not answered with 200: {answer.status} {answer.body[:300]!r}")
    log_key = await _wait_for_log_key(postgres.dsn)
    await asyncio.to_thread(witness.start, log_key)
    testbed.log_keys = [log_key]

    async def stop_witness() -> None:
        await asyncio.to_thread(witness.stop)

    sandbox.add_cleanup(stop_witness)
    for number in range(1, gateways):
        await testbed.start_gateway(f"gateway-{number}")
    return testbed


async def _wait_for_log_key(dsn: str) -> VerifierKey:
    connection = await asyncpg.connect(dsn)
    query = "select verifier_key from deputize.log_keys where tenant = $1"
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            while (text := await connection.fetchval(query, TENANT)) is None:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
    finally:
        await connection.close()
    return VerifierKey.parse(text)
