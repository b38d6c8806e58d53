"""Start one PostgreSQL per test worker, and make fresh migrated databases from a template in it.

With `pytest -n 2` each worker is a process with a session of its own: a server, a free port, an event loop and
temporary folders. What workers share on disk is `.cache/` (npm packages), which is installed under a lock.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import hypothesis
import pytest

from deputize.runs.engine import DurableEngine
from deputize.store import migrate
from deputize.store.local_postgres import LocalPostgres

TEMPLATE = "deputize_template"
# The same few examples each time, so that a failure is the change's and can be seen again; `.ci/nightly` draws many new
# ones (`--hypothesis-profile=random`). How fast a machine draws says nothing about what is tested; a busy one is slow.
for _name, _derandomize, _examples in (("fixed", True, 40), ("random", False, 400)):
    hypothesis.settings.register_profile(
        _name,
        derandomize=_derandomize,
        max_examples=_examples,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        deadline=None,
    )
hypothesis.settings.load_profile("fixed")
# Thousands of tests stay in memory until the end: collecting among them takes a good part of a run.
gc.set_threshold(20_000, 20, 50)


def pytest_collection_finish() -> None:
    gc.freeze()


@contextmanager
def _reachable_folder() -> Iterator[Path]:
    """A temporary folder that a server running under another account can pass through, but not list."""
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
    postgres.run_sql(f"create database {TEMPLATE}", database="postgres")
    migrate.upgrade(postgres.dsn_for(TEMPLATE))
    asyncio.run(_register_queue(postgres.dsn_for(TEMPLATE)))
    numbers = count(1)

    def create_database() -> str:
        name = f"test_{next(numbers)}"
        # Copied, not logged: nobody replicates or recovers it.
        postgres.run_sql(f"create database {name} template {TEMPLATE} strategy file_copy", database="postgres")
        return postgres.dsn_for(name)

    return create_database


async def _register_queue(dsn: str) -> None:
    """As after the first start of a worker: the engine finds a new queue a second late."""
    engine = DurableEngine(dsn, executor="template", concurrency=1, poll_seconds=0.05)
    await engine.start(_refuse_run)
    await engine.stop(seconds=0)


async def _refuse_run(tenant: str, call_id: str) -> None:
    raise AssertionError("the template has no runs")


def _drop_database(postgres: LocalPostgres, dsn: str) -> None:
    name = dsn.rsplit("/", 1)[1]
    postgres.run_sql(f"drop database if exists {name} with (force)", database="postgres")


@pytest.fixture
def fresh_database(postgres: LocalPostgres, make_database: Callable[[], str]) -> Iterator[str]:
    """The DSN of a migrated database that only this test sees."""
    dsn = make_database()
    yield dsn
    _drop_database(postgres, dsn)


@pytest.fixture(scope="module")
def module_database(postgres: LocalPostgres, make_database: Callable[[], str]) -> Iterator[str]:
    """The DSN of a migrated database shared by the tests of one module."""
    dsn = make_database()
    yield dsn
    _drop_database(postgres, dsn)
