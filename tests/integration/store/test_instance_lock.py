"""Test the lock of the one development gateway on a database: who holds it, who hears no, and how a loss is noticed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from deputize.store.instance_lock import InstanceLock, is_development_database
from tests.support.gateway_lab import wait_until

pytestmark = pytest.mark.requirement("GOV-3")


@contextlib.asynccontextmanager
async def _keep_lock(lock: InstanceLock, returns: list[str]) -> AsyncIterator["asyncio.Task[None]"]:
    async def note_return() -> None:
        returns.append("held again")

    task = asyncio.create_task(lock.keep(note_return))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        lock.drop()


async def _end_session(dsn: str, lock: InstanceLock) -> None:
    """End the session that holds the lock, as a restart of the server or a client with its password does."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select pg_terminate_backend($1, 60000)", lock._session_pid)
    finally:
        await connection.close()


async def _wait_for(condition: Callable[[], bool]) -> None:
    async def is_met() -> bool:
        return condition()

    await wait_until(is_met)


async def test_only_one_process_holds_it_and_the_other_hears_which(fresh_database: str) -> None:
    first, second = InstanceLock(fresh_database), InstanceLock(fresh_database)
    assert not await is_development_database(fresh_database)
    assert await first.acquire()
    assert not await second.acquire()
    assert (first.is_held, second.is_held, second.holder.isdigit()) == (True, False, True)
    assert await is_development_database(fresh_database)
    first.drop()
    await wait_until(second.acquire)
    second.drop()


async def test_a_lost_session_is_noticed_at_once_and_the_lock_is_taken_again(fresh_database: str) -> None:
    lock, returns = InstanceLock(fresh_database), list[str]()
    assert await lock.acquire()
    async with _keep_lock(lock, returns):
        await asyncio.sleep(0)
        await _end_session(fresh_database, lock)
        await _wait_for(lambda: returns == ["held again"])
        assert lock.is_held
        assert not await InstanceLock(fresh_database).acquire()


async def test_a_process_that_lost_it_to_another_is_told(fresh_database: str) -> None:
    lock, thief = InstanceLock(fresh_database), InstanceLock(fresh_database)
    assert await lock.acquire()
    await _end_session(fresh_database, lock)
    await _wait_for(lambda: not lock.is_held)
    assert await thief.acquire()
    async with _keep_lock(lock, []) as task:
        await asyncio.wait_for(task, 60)
        assert not lock.is_held
    thief.drop()


async def test_a_session_that_the_server_still_believes_in_is_replaced(fresh_database: str) -> None:
    lock = InstanceLock(fresh_database)
    assert await lock.acquire()
    abandoned, lock._connection = lock._connection, None
    assert not lock.is_held
    assert await lock.acquire()
    assert lock.is_held
    lock.drop()
    assert abandoned is not None
    abandoned.terminate()
