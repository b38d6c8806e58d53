"""What the parts of a proof of runs share, and what each of them found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deputize.store.local import LocalPostgres
from proofs.crash.nursery import Nursery
from proofs.fleet.asking import Asking
from proofs.fleet.crew import Crew, Database
from proofs.kit.companions import LedgerHandle
from proofs.kit.gateway import GatewayHandle, Issuer
from proofs.kit.report import Bar, Figure
from proofs.kit.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    figures: Mapping[str, Figure]
    bars: Mapping[str, Bar]
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    world: World
    postgres: LocalPostgres
    nursery: Nursery
    ledger: LedgerHandle
    database: Database
    gateway: GatewayHandle
    issuer: Issuer
    env: dict[str, str]

    async def crew(self, size: int, *, folder: Path | None = None, name: str = "worker") -> Crew:
        crew = Crew(
            world=self.world, nursery=self.nursery, folder=folder or self.gateway.folder, env=self.env,
            database=self.database, name=name,
        )  # fmt: skip
        self.world.at_end(crew.dismiss)
        for place in range(size):
            await crew.man(place)
        return crew

    def asking(self) -> Asking:
        return Asking(url=self.gateway.url, tokens={"acme": self.issuer.token("ann")})
