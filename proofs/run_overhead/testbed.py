"""What the parts of a proof of runs share, and what each of them found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deputize.store.local_postgres import LocalPostgres
from proofs.kit.fork_server import ForkServer
from proofs.kit.gateway import GatewayHandle, Issuer
from proofs.kit.helper_servers import LedgerHandle
from proofs.kit.report import Figure
from proofs.kit.run_submitter import RunSubmitter
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import Database, WorkerPool


@dataclass(frozen=True, kw_only=True, slots=True)
class PartResult:
    figures: Mapping[str, Figure]
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    postgres: LocalPostgres
    fork_server: ForkServer
    ledger: LedgerHandle
    database: Database
    gateway: GatewayHandle
    issuer: Issuer
    env: dict[str, str]

    async def start_pool(self, size: int, *, folder: Path | None = None, name: str = "worker") -> WorkerPool:
        pool = WorkerPool(
            sandbox=self.sandbox, fork_server=self.fork_server, folder=folder or self.gateway.folder, env=self.env,
            database=self.database, name=name,
        )  # fmt: skip
        self.sandbox.add_cleanup(pool.stop_all)
        for slot in range(size):
            await pool.start_worker(slot)
        return pool

    def create_submitter(self) -> RunSubmitter:
        return RunSubmitter(url=self.gateway.url, tokens={"acme": self.issuer.issue_token("ann")})
