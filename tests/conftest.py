"""One real PostgreSQL for the whole test session, and fresh migrated databases made from a template in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import hypothesis
import pytest

from deputize.store import migrate
from deputize.store.local import LocalPostgres

TEMPLATE = "deputize_template"
# How fast a machine draws examples says nothing about what is tested; a busy one draws slowly.
hypothesis.settings.register_profile("ours", suppress_health_check=[hypothesis.HealthCheck.too_slow], deadline=None)
hypothesis.settings.load_profile("ours")


@contextmanager
def _reachable_folder() -> Iterator[Path]:
    """A temporary folder that a server running under another account can pass through; nobody can list it."""
    folder = Path(tempfile.mkdtemp(prefix="deputize-test-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    with _reachable_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    """The session's server. Its database `deputize` stays empty; take a `fresh_database` to write in."""
    # No test cuts the power, so nothing has to reach the disk; a killed server still recovers.
    settings = {"fsync": "off", "full_page_writes": "off"}
    with _reachable_folder() as folder, LocalPostgres(folder / "db", settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def make_database(postgres: LocalPostgres) -> Callable[[], str]:
    """Makes a migrated database each time it is called and returns its DSN."""
    postgres.sql(f"create database {TEMPLATE}", database="postgres")
    migrate.upgrade(postgres.dsn_for(TEMPLATE))
    numbers = count(1)

    def make() -> str:
        name = f"test_{next(numbers)}"
        postgres.sql(f"create database {name} template {TEMPLATE}", database="postgres")
        return postgres.dsn_for(name)

    return make


def _drop(postgres: LocalPostgres, dsn: str) -> None:
    name = dsn.rsplit("/", 1)[1]
    postgres.sql(f"drop database if exists {name} with (force)", database="postgres")


@pytest.fixture
def fresh_database(postgres: LocalPostgres, make_database: Callable[[], str]) -> Iterator[str]:
    """The DSN of a migrated database that only this test sees."""
    dsn = make_database()
    yield dsn
    _drop(postgres, dsn)


@pytest.fixture(scope="module")
def module_database(postgres: LocalPostgres, make_database: Callable[[], str]) -> Iterator[str]:
    """The DSN of a migrated database shared by the tests of one module."""
    dsn = make_database()
    yield dsn
    _drop(postgres, dsn)
