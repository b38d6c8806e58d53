"""An event that a receiver refuses for good is found, skipped by an operator, and recorded; the others arrive."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.evidence.cloud_events import OutgoingEvent
from deputize.interfaces.cli.local.event_skip import skip_next_event
from deputize.operations.background.events.sink import SinkFailure
from deputize.operations.background.events.skip import skip_event
from deputize.store.pool import Store
from tests.integration.conftest import serve_gateway
from tests.integration.operations.background.test_event_publisher import (
    TENANTS,
    drain,
    make_publisher,
    make_settings,
    sequence_entries,
    write_calls,
)
from tests.integration.store.sample_rows import make_tenants

pytestmark = pytest.mark.requirement("GOV-5")
_NEXT_INDEX = "select next_index from deputize.event_positions where tenant = $1 and sink = 'bus'"


class ParticularReceiver:
    """A receiver that refuses every request that contains one event."""

    def __init__(self, refused_id: str) -> None:
        self.refused_id = refused_id
        self.event_ids: list[str] = []

    async def send(self, events: Sequence[OutgoingEvent]) -> int:
        if any(event.id == self.refused_id for event in events):
            raise SinkFailure("the receiver at siem.example answered 400")
        self.event_ids.extend(event.id for event in events)
        return len(events)

    async def aclose(self) -> None:
        pass


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    await make_tenants(fresh_database, *TENANTS)
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


@pytest.fixture
async def owner(store: Store) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(store.direct_dsn)
    yield connection
    await connection.close()


async def _list_event_ids(owner: asyncpg.Connection, tenant: str) -> list[str]:
    rows = await owner.fetch("select entry_id from deputize.log_leaves where tenant = $1 order by leaf_index", tenant)
    return [str(row["entry_id"]) for row in rows]


async def _skip(store: Store, event_id: str, *, sink: str = "bus", tenant: str = "acme") -> None:
    async with store.write_transaction() as connection:
        await skip_event(connection, sink, tenant, event_id)


@pytest.mark.parametrize("types", [["*"], ["tool.invocation.succeeded"]], ids=["all", "some"])
async def test_the_event_that_a_receiver_refuses_is_found_and_skipped_alone(
    store: Store, owner: asyncpg.Connection, types: list[str]
) -> None:
    await write_calls(store, 120)
    await sequence_entries(store, owner)
    event_ids = {tenant: await _list_event_ids(owner, tenant) for tenant in TENANTS}
    # The second half are outcomes: with some types, what comes before it is not wanted.
    refused_index = 77
    refused_id = event_ids["acme"][refused_index]
    receiver = ParticularReceiver(refused_id)
    publisher = make_publisher(store, receiver, make_settings("nats://127.0.0.1:1", types=types))
    async with asyncio.timeout(90):
        while await owner.fetchval(_NEXT_INDEX, "acme") != refused_index:
            await publisher.run_step()
    async with asyncio.timeout(90):
        while f"event {refused_id})" not in str(await owner.fetchval("select last_error from deputize.event_sinks")):
            await publisher.run_step()
    error = await owner.fetchval("select last_error from deputize.event_sinks")
    assert error == f"the receiver at siem.example answered 400 (tenant acme, event {refused_id})"

    for other in (event_ids["acme"][refused_index - 1], event_ids["acme"][refused_index + 1], Clock().new_id()):
        with pytest.raises(ConfigError, match=f"is {refused_id}; only that one"):
            await _skip(store, other)
    with pytest.raises(ConfigError, match="There is no event sink"):
        await _skip(store, refused_id, sink="none")
    with pytest.raises(ConfigError, match="There is no tenant"):
        await _skip(store, refused_id, tenant="none")
    # The event of one tenant is not skipped in the name of another.
    with pytest.raises(ConfigError, match="Nothing was skipped"):
        await _skip(store, refused_id, tenant="other")
    assert await owner.fetchval(_NEXT_INDEX, "acme") == refused_index

    await _skip(store, refused_id)
    await drain(publisher, owner)
    wanted = {each for ids in event_ids.values() for each in (ids if types == ["*"] else ids[len(ids) // 2 :])}
    assert sorted(receiver.event_ids) == sorted(wanted - {refused_id})
    with pytest.raises(ConfigError, match="has every event"):
        await _skip(store, refused_id)


@pytest.mark.requirement("GOV-1")
async def test_only_an_operator_who_has_just_signed_in_skips_and_it_is_recorded(
    fresh_database: str, tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path) as gateway:
        settings, operator_token = gateway.settings, gateway.other_token("olga")
        agent_token = gateway.token("ana", agent="bot")
    await make_tenants(fresh_database, "quiet")
    db = await asyncpg.connect(fresh_database)
    event_id = Clock().new_id()
    await db.execute("insert into deputize.event_sinks (name, started_at) values ('bus', now())")
    await db.execute(
        "insert into deputize.log_leaves (tenant, leaf_index, entry_id, hash) values ('quiet', 0, $1, sha256('l'))",
        event_id,
    )

    async def skip(token: str) -> Any:
        def refuse() -> None:
            raise AssertionError("the terminal is asked in development only")

        await asyncio.to_thread(skip_next_event, settings, "bus", "quiet", event_id, token=token, confirm=refuse)

    try:
        with pytest.raises(ConfigError, match="Who confirms it"):
            await skip("")
        with pytest.raises(ConfigError, match="An agent, or a token that is delegated or limited"):
            await skip(agent_token)
        assert await db.fetchval(_NEXT_INDEX, "quiet") is None
        await skip(operator_token)
        assert await db.fetchval(_NEXT_INDEX, "quiet") == 1
        rows = await db.fetch("select entry from deputize.audit_entries where tenant = 'quiet'")
        [entry] = [orjson.loads(row["entry"]) for row in rows]
        assert (entry["command"], entry["subject"]) == ("skip_event", f"sink=bus event={event_id}")
        assert "operator-sign-in" in orjson.dumps(entry).decode()
    finally:
        await db.close()
