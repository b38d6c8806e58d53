"""The PostgreSQL proxy strikes at the commit it was armed for, and the rows are there or not accordingly."""

import asyncio
import sys
from collections.abc import AsyncIterator

import asyncpg
import pytest

from deputize.store.local_postgres import LocalPostgres
from proofs.kit.fault_trigger import FaultTrigger
from proofs.kit.postgres_proxy import PgPoint, PgProxy
from proofs.kit.sandbox import Sandbox

pytestmark = pytest.mark.nightly

INSERT = "insert into pgproxy_rows values ($1)"

CLIENT = """
import asyncio, asyncpg, sys
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    insert = await connection.prepare("insert into pgproxy_rows values ($1)")
    for number in range(1, 6):
        await insert.fetch(number)
        print("acknowledged", number, flush=True)
asyncio.run(main())
"""


async def do_nothing() -> None:
    return


def is_insert(sql: str) -> bool:
    return sql.startswith("insert into pgproxy_rows")


@pytest.fixture
async def direct_connection(postgres: LocalPostgres) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute(
        "create table if not exists pgproxy_rows (n int primary key deferrable initially deferred);"
        "truncate pgproxy_rows"
    )
    yield connection
    await connection.execute("drop table pgproxy_rows")
    await connection.close()


@pytest.fixture
async def proxy(postgres: LocalPostgres) -> AsyncIterator[PgProxy]:
    async with PgProxy(postgres.dsn) as proxy:
        yield proxy


@pytest.fixture
async def client(direct_connection: asyncpg.Connection, proxy: PgProxy) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(proxy.dsn)
    yield connection
    connection.terminate()


async def fetch_rows(direct: asyncpg.Connection) -> list[int]:
    return [row["n"] for row in await direct.fetch("select n from pgproxy_rows order by n")]


async def test_an_unarmed_proxy_is_transparent(client: asyncpg.Connection, proxy: PgProxy) -> None:
    await client.executemany(INSERT, [(1,), (2,)])
    await client.copy_records_to_table("pgproxy_rows", records=[(3,), (4,)])
    async with client.transaction():
        await client.execute(INSERT, 5)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await client.fetch("select 1/0")
    assert await client.fetchval("select count(*) from pgproxy_rows") == 5
    assert await client.fetchval("select repeat('x', 300000)") == "x" * 300000
    assert any(is_insert(sql) for sql in proxy.commits)


@pytest.mark.parametrize(("point", "kept"), [("before_forward", [1, 2]), ("after_commit_before_ack", [1, 2, 3])])
async def test_a_killed_process_never_hears_of_the_third_commit(
    direct_connection: asyncpg.Connection, proxy: PgProxy, point: PgPoint, kept: list[int]
) -> None:
    async with Sandbox() as world:
        killed: list[int] = []

        async def kill() -> None:
            inserter.kill()
            killed.append(await inserter.wait_for_exit())

        armed = proxy.arm(is_insert, 3, point, kill)
        inserter = await world.start_process("client", [sys.executable, "-c", CLIENT, proxy.dsn])
        await armed.wait(90)
        assert killed == [-9]
        assert await fetch_rows(direct_connection) == kept
        assert "acknowledged 2" in inserter.log.read_text()
        assert "acknowledged 3" not in inserter.log.read_text()


@pytest.mark.parametrize(("point", "kept"), [("before_forward", []), ("after_commit_before_ack", [1, 2])])
async def test_an_explicit_transaction_is_struck_at_its_commit(
    direct_connection: asyncpg.Connection, client: asyncpg.Connection, proxy: PgProxy, point: PgPoint, kept: list[int]
) -> None:
    armed = proxy.arm(is_insert, 1, point, do_nothing)
    transaction = client.transaction()
    await transaction.start()
    await client.execute(INSERT, 1)
    await client.execute(INSERT, 2)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError)):
        await transaction.commit()
    await armed.wait(90)
    assert await fetch_rows(direct_connection) == kept


async def test_a_commit_over_the_extended_protocol_is_recognised(
    direct_connection: asyncpg.Connection, client: asyncpg.Connection, proxy: PgProxy
) -> None:
    await client.execute("begin")
    await client.fetch(INSERT, 1)
    armed = proxy.arm(is_insert, 1, "before_forward", do_nothing)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError)):
        await (await client.prepare("commit")).fetch()
    await armed.wait(90)
    assert await fetch_rows(direct_connection) == []


async def test_a_commit_that_fails_is_passed_on_and_not_counted(
    direct_connection: asyncpg.Connection, client: asyncpg.Connection, proxy: PgProxy
) -> None:
    await client.execute(INSERT, 1)
    armed = proxy.arm(is_insert, 1, "after_commit_before_ack", do_nothing)
    with pytest.raises(asyncpg.UniqueViolationError):
        await client.execute(INSERT, 1)
    with pytest.raises(asyncpg.UniqueViolationError):  # the constraint is deferred: COMMIT itself fails
        async with client.transaction():
            await client.execute(INSERT, 1)
    assert not armed.has_fired
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError)):
        await client.execute(INSERT, 2)
    await armed.wait(90)
    assert await fetch_rows(direct_connection) == [1, 2]


async def test_a_commit_that_failed_is_not_counted_before_the_one_that_is_struck(
    direct_connection: asyncpg.Connection, client: asyncpg.Connection, proxy: PgProxy
) -> None:
    await client.execute(INSERT, 1)
    armed = proxy.arm(is_insert, 2, "before_forward", do_nothing)
    with pytest.raises(asyncpg.UniqueViolationError):
        await client.execute(INSERT, 1)
    assert armed.match_count == 0
    await client.execute(INSERT, 2)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError)):
        await client.execute(INSERT, 3)
    await armed.wait(90)
    assert await fetch_rows(direct_connection) == [1, 2]


async def test_what_was_rolled_back_is_no_commit(
    direct_connection: asyncpg.Connection, client: asyncpg.Connection, proxy: PgProxy
) -> None:
    armed = proxy.arm(is_insert, 1, "before_forward", do_nothing)
    transaction = client.transaction()
    await transaction.start()
    await client.execute(INSERT, 1)
    await transaction.rollback()
    assert armed.match_count == 0
    assert await fetch_rows(direct_connection) == []


async def test_the_nth_commit_is_counted_over_all_connections(
    direct_connection: asyncpg.Connection, proxy: PgProxy
) -> None:
    armed = proxy.arm(is_insert, 7, "before_forward", do_nothing)
    connections = [await asyncpg.connect(proxy.dsn) for _ in range(4)]

    async def insert_two(connection: asyncpg.Connection, first: int) -> None:
        await connection.execute(INSERT, first)
        await connection.execute(INSERT, first + 1)

    tasks = [insert_two(connection, number * 2) for number, connection in enumerate(connections)]
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    await armed.wait(90)
    assert sum(isinstance(outcome, BaseException) for outcome in ended) == 1
    assert len(await fetch_rows(direct_connection)) == 7
    for connection in connections:
        connection.terminate()


async def test_cutting_every_connection_may_be_the_action(
    direct_connection: asyncpg.Connection, client: asyncpg.Connection, proxy: PgProxy
) -> None:
    other = await asyncpg.connect(proxy.dsn)
    armed = proxy.arm(is_insert, 1, "after_commit_before_ack", proxy.close_connections)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionError)):
        await client.execute(INSERT, 1)
    await armed.wait(90)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
        await other.fetchval("select 1")
    assert await fetch_rows(direct_connection) == [1]


async def test_waiting_for_a_point_that_is_not_reached_says_how_far_it_got() -> None:
    armed: FaultTrigger[str, PgPoint] = FaultTrigger(lambda _: True, 2, "before_forward", do_nothing)
    assert not armed.try_claim("one")
    with pytest.raises(TimeoutError, match="1 of 2"):
        await armed.wait(0.01)
