"""Every logged entry reaches every sink, in the order of its call, whatever happens to brokers and processes."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import asyncpg
import nats
import orjson
import pytest
import structlog
from nats.errors import TimeoutError as NatsTimeout

from deputize.core.clock import Clock
from deputize.core.settings import EventSinkSettings
from deputize.evidence.audit_entries import VERSION
from deputize.evidence.metrics import Metrics
from deputize.operations.background.events.nats_sink import NatsSink
from deputize.operations.background.events.publisher import EventPublisher
from deputize.operations.background.events.sink import EventSink
from deputize.operations.background.events.webhook_sink import WebhookSink
from deputize.operations.background.log_sequencer import LogSequencer
from deputize.store.exclusive_lease import LeaseTakeover
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import Store
from tests.integration.store.sample_rows import make_entry, make_tenants, open_writer, put_all
from tests.support.kept_events import KeptEvents, RefusedTenant
from tests.support.nats_server import NatsServer, run_nats_server
from tests.support.webhook_receiver import open_webhook_receiver

pytestmark = pytest.mark.requirement("GOV-5")
TENANTS = ("acme", "other")
EXPIRE_LEASE = "update deputize.event_sinks set expires_at = now() - interval '1 second'"
POSITIONS = "select tenant, next_index from deputize.event_positions where sink = $1 order by tenant"


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


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with run_nats_server() as server:
        yield server


def make_keys(store: Store) -> TenantKeys:
    return TenantKeys(store, MasterKey(material=b"\x05" * KEY_BYTES), Clock())


def make_settings(url: str, kind: str = "nats", **changes: Any) -> EventSinkSettings:
    return EventSinkSettings.model_validate({"name": "bus", "kind": kind, "url": url, "start": "beginning", **changes})


def make_publisher(
    store: Store, sink: EventSink, settings: EventSinkSettings | None = None, metrics: Metrics | None = None
) -> EventPublisher:
    clock = Clock()
    settings = settings or make_settings("nats://127.0.0.1:1")
    boot_id, url = clock.new_id(), "https://gateway.example"
    return EventPublisher(settings, sink, store, metrics or Metrics(), clock, boot_id=boot_id, base_url=url)


def encode_step(call_id: str, *states: str, kind: str = "intent") -> bytes:
    return orjson.dumps(
        {"call": call_id, "kind": kind, "states": states, "time": "2026-11-01T00:00:00.000Z", "v": VERSION}
    )


async def write_calls(store: Store, count: int, tenants: Sequence[str] = TENANTS) -> list[str]:
    """Write an intent and an outcome for each of some calls, each pair in its order."""
    call_ids = [Clock().new_id() for _ in range(count)]
    async with open_writer(store.direct_dsn) as writer:
        for states, kind in ((("running",), "intent"), (("succeeded",), "outcome")):
            rows = [
                make_entry(tenant=tenants[n % len(tenants)], call_id=each, entry=encode_step(each, *states, kind=kind))
                for n, each in enumerate(call_ids)
            ]
            await put_all(writer, rows)
    return call_ids


async def sequence_entries(store: Store, owner: asyncpg.Connection) -> None:
    clock = Clock()
    sequencer = LogSequencer(
        store, make_keys(store), clock, boot_id=clock.new_id(), public_url="https://gateway.example"
    )
    async with asyncio.timeout(90):
        while await owner.fetchval("select exists (select from deputize.log_queue)"):
            await sequencer.run_step()
    await sequencer.stop()


async def drain(publisher: EventPublisher, owner: asyncpg.Connection) -> None:
    """Run steps until the sink has everything that is logged."""
    async with asyncio.timeout(90):
        while True:
            await publisher.run_step()
            if not await owner.fetchval(
                """select exists (select from deputize.log_leaves l where l.leaf_index >= coalesce((
                       select next_index from deputize.event_positions p
                       where p.tenant = l.tenant and p.sink = 'bus'), 0))"""
            ):
                return


def check_order(events: Sequence[tuple[str, str]], call_ids: Sequence[str]) -> None:
    """Check that every call's first occurrences are its two events, in order."""
    by_call: defaultdict[str, list[str]] = defaultdict(list)
    for call_id, kind in events:
        if kind not in by_call[call_id]:
            by_call[call_id].append(kind)
    assert by_call.keys() == set(call_ids)
    assert all(kinds == ["tool.invocation.started", "tool.invocation.succeeded"] for kinds in by_call.values())


async def read_stream(server: NatsServer, count: int) -> list[Any]:
    """Read the messages of the stream, and check that there are no more."""
    client = await nats.connect(server.url)
    try:
        subscription = await client.jetstream().pull_subscribe("", stream="deputize-events", durable="reader")
        messages: list[Any] = []
        async with asyncio.timeout(90):
            while len(messages) < count:
                with contextlib.suppress(NatsTimeout):
                    for message in await subscription.fetch(100, timeout=1):
                        # Else the server sends it again, if this takes long.
                        await message.ack()
                        messages.append(message)
        info = await client.jetstream().stream_info("deputize-events")
        assert info.state.messages == count
        return messages
    finally:
        await client.close()


async def test_events_reach_jetstream_as_cloudevents_in_the_order_of_their_call(
    store: Store, owner: asyncpg.Connection, broker: NatsServer
) -> None:
    call_ids = await write_calls(store, 40)
    await sequence_entries(store, owner)
    settings = make_settings(broker.url)
    publisher = make_publisher(store, NatsSink(settings), settings)
    await drain(publisher, owner)
    await publisher.stop()
    messages = await read_stream(broker, 80)
    events = [orjson.loads(message.data) for message in messages]
    check_order([(event["call"], event["type"]) for event in events], call_ids)
    for message, event in zip(messages, events, strict=True):
        assert message.headers["Nats-Msg-Id"] == event["id"]
        assert message.subject == f"deputize.events.{event['tenant']}.{event['type']}"
        assert event["source"] == f"https://gateway.example/log/{event['tenant']}"
        assert event["specversion"] == "1.0"
        assert event["data"]["entry"]["call"] == event["subject"]
    for tenant in TENANTS:
        sequences = [event["sequence"] for event in events if event["tenant"] == tenant]
        assert sorted(sequences) == [f"{n:016d}" for n in range(40)]


async def test_a_broker_that_is_killed_or_frozen_is_waited_for_and_gets_every_event_once(
    store: Store, owner: asyncpg.Connection, broker: NatsServer
) -> None:
    settings, metrics = make_settings(broker.url), Metrics()
    publisher = make_publisher(store, NatsSink(settings), settings, metrics)
    call_ids = await write_calls(store, 10)
    await sequence_entries(store, owner)
    await drain(publisher, owner)
    for pause in (broker.kill, broker.freeze):
        pause()
        call_ids += await write_calls(store, 10)
        await sequence_entries(store, owner)
        before = await owner.fetch(POSITIONS, "bus")
        assert await publisher.run_step() > 0
        assert await owner.fetch(POSITIONS, "bus") == before
        row = await owner.fetchrow("select failures, last_error from deputize.event_sinks")
        assert row is not None
        assert row["failures"] >= 1
        assert row["last_error"].startswith("NATS at 127.0.0.1: ")
        if pause == broker.kill:
            broker.start()
        else:
            broker.thaw()
        await drain(publisher, owner)
    assert await owner.fetchval("select failures from deputize.event_sinks") == 0
    messages = [orjson.loads(each.data) for each in await read_stream(broker, 60)]
    check_order([(event["call"], event["type"]) for event in messages], call_ids)
    assert (metrics.registry.get_sample_value("deputize_event_send_failures_total", {"sink": "bus"}) or 0) >= 2
    assert metrics.registry.get_sample_value("deputize_events_sent_total", {"sink": "bus"}) == 60
    await publisher.stop()


async def test_a_process_that_was_taken_over_while_it_sent_cannot_move_the_position(
    store: Store, owner: asyncpg.Connection
) -> None:
    call_ids = await write_calls(store, 6)
    await sequence_entries(store, owner)
    slow_sink, quick_sink = KeptEvents(), KeptEvents()
    slow, quick = make_publisher(store, slow_sink), make_publisher(store, quick_sink)

    async def take_over() -> None:
        await owner.execute(EXPIRE_LEASE)
        await drain(quick, owner)

    slow_sink.before_send = take_over
    with pytest.raises(LeaseTakeover):
        await drain(slow, owner)
    assert len(quick_sink.events) == 12
    check_order([(event.call_id or "", event.type) for event in quick_sink.events], call_ids)
    assert await owner.fetchval("select sent_count from deputize.event_sinks") == 12


async def test_a_process_that_stops_is_followed_at_once_and_one_that_dies_after_its_lease(
    store: Store, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deputize.operations.background.events.publisher._LEASE_SECONDS", 3600.0)  # ends by no delay
    first_sink, second_sink = KeptEvents(), KeptEvents()
    first, second = make_publisher(store, first_sink), make_publisher(store, second_sink)
    await write_calls(store, 1)
    await sequence_entries(store, owner)
    await drain(first, owner)
    await write_calls(store, 1)
    await sequence_entries(store, owner)
    for _ in range(3):
        await second.run_step()
    assert not second_sink.events
    await first.stop()
    await drain(second, owner)
    assert len(second_sink.events) == 2
    await write_calls(store, 1)
    await sequence_entries(store, owner)
    await owner.execute(EXPIRE_LEASE)
    third_sink = KeptEvents()
    await drain(make_publisher(store, third_sink), owner)
    assert (len(first_sink.events), len(second_sink.events), len(third_sink.events)) == (2, 2, 2)


async def test_what_was_acknowledged_before_a_failure_is_not_sent_again(
    store: Store, owner: asyncpg.Connection
) -> None:
    await write_calls(store, 4)
    await sequence_entries(store, owner)
    sink = KeptEvents()
    sink.limit = 3
    publisher = make_publisher(store, sink)
    count = 0

    async def fail_once() -> None:
        nonlocal count
        count += 1
        sink.refusals = count == 2

    sink.before_send = fail_once
    await drain(publisher, owner)
    ids = [event.id for event in sink.events]
    assert len(ids) == len(set(ids)) == 8
    assert count == 5


async def test_a_tenant_whose_events_are_refused_does_not_hold_up_the_others(
    store: Store, owner: asyncpg.Connection
) -> None:
    await write_calls(store, 6)
    await sequence_entries(store, owner)
    sink = RefusedTenant("acme")
    publisher = make_publisher(store, sink)
    with structlog.testing.capture_logs() as lines:
        async with asyncio.timeout(90):
            while await owner.fetchval("select coalesce(sum(next_index), 0) from deputize.event_positions") < 6:
                await publisher.run_step()
        for _ in range(6):
            await publisher.run_step()
        assert {event.tenant for event in sink.events} == {"other"}
        sink.refused = None
        await drain(publisher, owner)
        await publisher.run_step()
    assert len(sink.events) == 12
    assert [line["event"] for line in lines if line["event"].startswith("event_sink_")] == [
        "event_sink_failed",
        "event_sink_recovered",
    ]


async def test_a_sink_gets_only_the_tenants_and_types_of_its_settings(store: Store, owner: asyncpg.Connection) -> None:
    await write_calls(store, 6)
    await sequence_entries(store, owner)
    sink = KeptEvents()
    settings = make_settings("nats://127.0.0.1:1", tenants=["ac*"], types=["tool.invocation.succeeded"])
    publisher = make_publisher(store, sink, settings)
    async with asyncio.timeout(90):
        while not await owner.fetchval("select next_index = 6 from deputize.event_positions where tenant = 'acme'"):
            await publisher.run_step()
    assert [(event.tenant, event.type) for event in sink.events] == [("acme", "tool.invocation.succeeded")] * 3
    assert [row["tenant"] for row in await owner.fetch(POSITIONS, "bus")] == ["acme"]


async def test_a_new_sink_begins_with_what_happens_after_it(store: Store, owner: asyncpg.Connection) -> None:
    await write_calls(store, 3, tenants=("acme",))
    await sequence_entries(store, owner)
    sink = KeptEvents()
    publisher = make_publisher(store, sink, make_settings("nats://127.0.0.1:1", start="now"))
    await drain(publisher, owner)
    assert not sink.events
    call_ids = await write_calls(store, 2)
    await sequence_entries(store, owner)
    await drain(publisher, owner)
    check_order([(event.call_id or "", event.type) for event in sink.events], call_ids)


async def test_entries_of_a_call_keep_their_order_where_clocks_differ(store: Store, owner: asyncpg.Connection) -> None:
    """The outcome has a smaller id than the intent, because it was made by a gateway whose clock is behind."""
    call_id, early_id, late_id = Clock().new_id(), Clock().new_id(), Clock().new_id()
    first, second = sorted((early_id, late_id), reverse=True)
    async with open_writer(store.direct_dsn) as writer:
        await writer.put(make_entry(id=first, call_id=call_id, entry=encode_step(call_id, "running")))
        await writer.put(make_entry(id=second, call_id=call_id, entry=encode_step(call_id, "succeeded")))
    await sequence_entries(store, owner)
    sink = KeptEvents()
    await drain(make_publisher(store, sink), owner)
    assert [event.id for event in sink.events] == [first, second]
    check_order([(event.call_id or "", event.type) for event in sink.events], [call_id])


async def test_an_entry_that_is_too_large_or_unreadable_is_named_and_does_not_hold_up_the_others(
    store: Store, owner: asyncpg.Connection
) -> None:
    async with open_writer(store.direct_dsn) as writer:
        for entry in (b"x" * 70_000, b"not JSON", b'{"v":1}', encode_step("c", "running")):
            await writer.put(make_entry(entry=entry))
    await sequence_entries(store, owner)
    sink = KeptEvents()
    settings = make_settings("nats://127.0.0.1:1", types=["tool.invocation.started"])
    await drain(make_publisher(store, sink, settings), owner)
    assert [event.type for event in sink.events] == ["audit.opaque"] * 3 + ["tool.invocation.started"]
    data = orjson.loads(sink.events[0].body)["data"]
    assert data["entry_size"] == 70_000
    assert len(data["entry_sha256"]) == 64


async def test_the_lag_is_the_age_of_the_oldest_entry_that_was_not_sent(
    store: Store, owner: asyncpg.Connection
) -> None:
    metrics, sink = Metrics(), KeptEvents()
    publisher = make_publisher(store, sink, metrics=metrics)
    old_id = Clock(epoch_ms=lambda: Clock().epoch_ms() - 3_600_000).new_id()

    def read_lag() -> float:
        lag = metrics.registry.get_sample_value("deputize_event_lag_seconds", {"sink": "bus"})
        assert lag is not None
        return lag

    await publisher.run_step()
    assert read_lag() == 0
    async with open_writer(store.direct_dsn) as writer:
        await writer.put(make_entry(id=old_id))
    await publisher._measure_lag()
    assert 3_600 <= read_lag() < 3_900  # still queued for the log
    await sequence_entries(store, owner)
    await publisher._measure_lag()
    assert 3_600 <= read_lag() < 3_900
    await drain(publisher, owner)
    await publisher._measure_lag()
    assert read_lag() == 0


async def test_a_webhook_gets_signed_batches_of_one_tenant_and_again_after_an_error(
    store: Store, owner: asyncpg.Connection
) -> None:
    call_ids = await write_calls(store, 10)
    await sequence_entries(store, owner)
    async with open_webhook_receiver() as receiver:
        receiver.statuses = [503]
        settings, keys = make_settings(receiver.url, "webhook"), make_keys(store)
        publisher = make_publisher(store, WebhookSink(settings, keys, Clock()), settings)
        await drain(publisher, owner)
        await publisher.stop()
        refused, *requests = receiver.requests
    # Meanwhile the other tenant's events were sent.
    (repeated,) = [each for each in requests if each.headers["webhook-id"] == refused.headers["webhook-id"]]
    assert orjson.loads(refused.body) == orjson.loads(repeated.body)
    batches = [orjson.loads(request.body) for request in requests]
    check_order([(event["call"], event["type"]) for batch in batches for event in batch], call_ids)
    for request, batch in zip(requests, batches, strict=True):
        assert {event["tenant"] for event in batch} in ({"acme"}, {"other"})
        assert request.headers["content-type"] == "application/cloudevents-batch+json"
        assert request.headers["webhook-signature"].startswith("v1,")
    row = await owner.fetchrow("select last_error, sent_count from deputize.event_sinks")
    assert row is not None
    assert row["last_error"].startswith("the receiver at 127.0.0.1 answered 503 (tenant acme, from event ")
    assert row["sent_count"] == 20
