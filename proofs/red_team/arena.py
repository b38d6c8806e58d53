"""Provide what is attacked: databases, gateways as in production, and the variant of a control."""

import itertools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import asyncpg

from deputize.store.local_postgres import LocalPostgres
from deputize.store.migrate import upgrade_async
from proofs.kit.gateway import GatewayHandle, GatewayOptions, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_login import create_gateway_login
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.sandbox import Sandbox

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(kw_only=True, slots=True)
class Arena:
    """One class of attacks gets one arena; `variant` names the broken gateway that is attacked in a control."""

    sandbox: Sandbox
    postgres: LocalPostgres
    name: str
    variant: str | None = None
    issuer: Issuer = field(default_factory=create_issuer)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def create_database(self) -> str:
        """Create a database with the current schema, and return its address."""
        name = f"{self._prefix}_{next(self._numbers)}"
        connection = await asyncpg.connect(self.postgres.dsn)
        try:
            await connection.execute(f'create database "{name}"')
        finally:
            await connection.close()
        dsn = f"{self.postgres.dsn.rpartition('/')[0]}/{name}"
        await upgrade_async(dsn)
        await create_gateway_login(dsn)
        return dsn

    async def start_gateway(
        self, dsn: str | None = None, *, env: dict[str, str] | None = None, **options: Unpack[GatewayOptions]
    ) -> GatewayHandle:
        """Start `deputize serve` on a database of its own, or the control's variant of it."""
        gateway = await start_gateway(
            self.sandbox,
            dsn or await self.create_database(),
            self.issuer,
            name=f"{self._prefix}-{next(self._numbers)}",
            env=env,
            **options,
        )
        if self.variant is not None:
            await self.restart_variant(gateway)
        return gateway

    async def restart_variant(self, gateway: GatewayHandle) -> None:
        """Start a gateway again as the control's variant."""
        if self.variant is None:
            raise ValueError(f"{self.name} is not attacked as a control")
        await restart_as_variant(gateway, self.variant)

    async def start_worker_variant(self, gateway: GatewayHandle) -> None:
        """Start a worker as the control's variant, in the gateway's folder."""
        port = self.sandbox.pick_free_port()
        module, env = self.choose_module("deputize")
        await self.sandbox.start_process(
            f"{gateway.name}-worker",
            [sys.executable, "-m", module, "work"],
            env={**gateway.env, **env, "DEPUTIZE_SERVER__METRICS_PORT": str(port)},
            cwd=gateway.folder,
        )

    def choose_module(self, module: str) -> tuple[str, dict[str, str]]:
        """Return the module to start and the environment that it needs: the control's variant of it, if one is."""
        if self.variant is None:
            return module, {}
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        return f"proofs.variants.{self.variant}", {"PYTHONPATH": path}

    @property
    def _prefix(self) -> str:
        return self.name if self.variant is None else f"{self.name}_control"
