"""Databases as in production: one login for migrations, one for gateways and one for people who read."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import asyncpg

from deputize.store.local_postgres import LocalPostgres
from deputize.store.logins import read_login_statements

_numbers = count(1)


@dataclass(frozen=True, kw_only=True)
class DatabaseLogins:
    """The addresses of one database, by login."""

    name: str
    owner: str
    migrator: str
    gateway: str
    auditor: str

    @property
    def env(self) -> dict[str, str]:
        """What a gateway's environment has."""
        return {"DEPUTIZE_DATABASE__URL": self.gateway}

    @property
    def migration_env(self) -> dict[str, str]:
        """What the environment of `deputize migrate` has."""
        return {"DEPUTIZE_DATABASE__MIGRATION_URL": self.migrator}


@contextmanager
def make_production_database(postgres: LocalPostgres) -> Iterator[DatabaseLogins]:
    """An empty database with the logins that `deputize migrate --print-roles` creates, each with a password."""
    name = f"production_{next(_numbers)}"
    postgres.run_sql(f"create database {name}", database="postgres")
    with create_logins(postgres, name, postgres.dsn_for(name)) as logins:
        yield logins


@contextmanager
def create_logins(postgres: LocalPostgres, name: str, administrator: str) -> Iterator[DatabaseLogins]:
    """The logins of a database, created with the address of an administrator; the database is dropped at the end."""
    passwords = "; ".join(
        f"alter role deputize_{each} password '{each}'" for each in ("migrator", "gateway", "auditor")
    )
    address = postgres.dsn_for(name).partition("@")[2]
    _run_sql(administrator, f"{read_login_statements()}; {passwords}")
    yield DatabaseLogins(
        name=name,
        owner=postgres.dsn_for(name),
        migrator=f"postgresql://deputize_migrator:migrator@{address}",
        gateway=f"postgresql://deputize_gateway:gateway@{address}",
        auditor=f"postgresql://deputize_auditor:auditor@{address}",
    )
    postgres.run_sql(f"drop database {name} with (force)", database="postgres")


def _run_sql(dsn: str, statements: str) -> None:
    async def run() -> None:
        connection: asyncpg.Connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statements)
        finally:
            await connection.close()

    # In a thread: the caller may be a test on an event loop.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, run()).result()
