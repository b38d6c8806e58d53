"""Databases as in production: one login for migrations, one for gateways and one for people who read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

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
    passwords = "; ".join(
        f"alter role deputize_{each} password '{each}'" for each in ("migrator", "gateway", "auditor")
    )
    postgres.run_sql(f"{read_login_statements()}; {passwords}", database=name)
    owner = postgres.dsn_for(name)
    address = owner.partition("@")[2]
    yield DatabaseLogins(
        name=name,
        owner=owner,
        migrator=f"postgresql://deputize_migrator:migrator@{address}",
        gateway=f"postgresql://deputize_gateway:gateway@{address}",
        auditor=f"postgresql://deputize_auditor:auditor@{address}",
    )
    postgres.run_sql(f"drop database {name} with (force)", database="postgres")
