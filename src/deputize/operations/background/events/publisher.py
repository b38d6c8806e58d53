"""Follow the tenants' logs and send an event for each entry, in one process at a time for each sink.

The position in each log is stored after the sink has acknowledged: a process that dies in between is followed by one
that sends the same events again, with the same ids. A sink that does not answer is waited for. Nothing is dropped, and
calls do not notice, because they neither send nor wait for what is sent. After some failures fewer of a tenant's events
are sent at once, until the position is at the one that the receiver refuses: an operator can skip it (`skip.py`).
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

import asyncpg
import structlog

from deputize.core.clock import Clock, parse_id_time_ms
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.patterns import matches_glob
from deputize.core.settings import EventSinkSettings
from deputize.evidence.cloud_events import OPAQUE_TYPE, OutgoingEvent, build_event
from deputize.evidence.log.tiles import MAX_ENTRY_SIZE
from deputize.evidence.metrics import Metrics
from deputize.operations.background.events.sink import SEND_SECONDS, EventSink, SinkFailure
from deputize.store.exclusive_lease import ExclusiveLease, LeaseStatements, LeaseTakeover
from deputize.store.pool import CONNECTION_ERRORS, Connection, Store
from deputize.store.queries import load_statements

_SQL = load_statements("events")
_LEASE = LeaseStatements(claim=_SQL["claim_sink"], renew=_SQL["renew_sink"], release=_SQL["release_sink"])
_INTERVAL_SECONDS: Final = 0.2
# A process that does not send looks this often whether it has to take over, and how far behind the sink is.
_WATCH_SECONDS: Final = 2.0
_LEASE_SECONDS: Final = 20.0
_RENEWAL_SECONDS: Final = 15.0
# Nothing is sent later than this after a renewal: one send fits into the rest of the lease.
_MAX_LEASE_AGE_SECONDS: Final = _LEASE_SECONDS - SEND_SECONDS - 4.0
_BATCH_TENANTS: Final = 10
_BATCH_EVENTS: Final = 250
# A refused batch is repeated as it was, for receivers that recognize it; then the number of events that are sent at
# once is halved so often for each refusal, down to one, and doubled again for each success.
_WHOLE_ATTEMPTS: Final = 3
_BATCH_HALVINGS: Final = 2
_MAX_REFUSALS: Final = _WHOLE_ATTEMPTS + 3
# Events that are built before calls get their turn on the event loop.
_BUILD_EVENTS: Final = 20
_FIRST_PAUSE_SECONDS: Final = 0.25
_MAX_PAUSE_SECONDS: Final = 5.0
_MAX_DOUBLINGS: Final = 10
# A sink that takes events has recovered when nothing failed for this long, or nothing waits.
_REPORT_SECONDS: Final = 30.0
_EVERY: Final = ("*",)
log = structlog.get_logger(__name__)


class EventPublisher(PeriodicTask):
    """Runs in every gateway for every sink; one of them sends, and another takes over when it stops or dies."""

    task_name = "event publisher"
    tolerated_errors = (*CONNECTION_ERRORS, LeaseTakeover)
    runs_at_start = False

    def __init__(
        self,
        settings: EventSinkSettings,
        sink: EventSink,
        store: Store,
        metrics: Metrics,
        clock: Clock,
        *,
        boot_id: str,
        base_url: str = "",
        rng: random.Random | None = None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._name = settings.name
        self._sink = sink
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._boot_id = boot_id
        self._base_url = base_url
        self._rng = rng or random.Random()
        self._lease = ExclusiveLease(_LEASE, self._name, boot_id=boot_id, seconds=_LEASE_SECONDS)
        self._renewed_at = 0.0
        self._after_tenant = ""
        # How often the next events of a tenant were refused, less those that were sent since.
        self._refusals: dict[str, int] = {}
        self._failures = 0
        # One line for a failure and one for its end, also if a sink refuses one tenant's events and takes the others'.
        self._failed_at = 0.0
        self._is_reported = False
        self._watch_due = 0.0
        # None means every tenant.
        self._tenants: list[str] | None = None

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    async def run_step(self) -> float:
        """Send what is waiting, if this process is the one that sends or can become it."""
        try:
            return await self._take_turn()
        except BaseException:
            self._lease.epoch = None
            raise

    async def stop(self) -> None:
        """Stop, and let another process take over at once."""
        await super().stop()
        await self._sink.aclose()
        with contextlib.suppress(*CONNECTION_ERRORS):
            async with self._store.write_transaction() as connection:
                await self._lease.release(connection)

    def report_error(self, error: Exception) -> None:
        log.warning("event_publisher_failed", sink=self._name, reason=repr(error))

    async def _take_turn(self) -> float:
        if self._clock.monotonic() >= self._watch_due:
            await self._measure_lag()
            self._watch_due = self._clock.monotonic() + _WATCH_SECONDS
        async with self._store.write_transaction() as connection:
            row = await connection.fetchrow(_SQL["inspect_sink"], self._boot_id, _RENEWAL_SECONDS, self._name)
            if row is None:
                await connection.execute(_SQL["ensure_sink"], self._name)
                return 0.0
            if not self._lease.holds(row):
                return await self._try_to_claim(connection, row)
            if row["is_renewal_due"]:
                await self._renew(connection)
            entries = await self._load_entries(connection)
        if not entries:
            return self._restart_round()
        return await self._send_entries(entries)

    async def _try_to_claim(self, connection: Connection, row: asyncpg.Record) -> float:
        """Become the process that sends, if no other is. A new sink begins where its settings say."""
        self._lease.epoch = None
        if not self._lease.can_claim(row):
            return _WATCH_SECONDS
        if await self._lease.claim(connection):
            self._renewed_at = self._clock.monotonic()
            if not row["is_started"]:
                if self._settings.start == "now":
                    await connection.execute(_SQL["skip_logged_entries"], self._name)
                await connection.execute(_SQL["start_sink"], self._name)
            log.debug("event_publisher_began", sink=self._name, epoch=self._lease.epoch)
        return 0.0

    async def _load_entries(self, connection: Connection) -> Sequence[asyncpg.Record]:
        """Load the next entries of some tenants, in turn, so that a busy one does not hold up the others."""
        tenants = await connection.fetch(
            _SQL["list_waiting_tenants"], self._name, self._after_tenant, _BATCH_TENANTS, self._tenants
        )
        if not tenants:
            return ()
        self._after_tenant = tenants[-1]["tenant"] if len(tenants) == _BATCH_TENANTS else ""
        return await connection.fetch(
            _SQL["load_logged_entries"],
            [row["tenant"] for row in tenants],
            [row["next_index"] for row in tenants],
            _BATCH_EVENTS // len(tenants),
            MAX_ENTRY_SIZE,
        )

    def _restart_round(self) -> float:
        """Go back to the first tenant; wait if all were looked at."""
        was_inside, self._after_tenant = bool(self._after_tenant), ""
        if was_inside:
            return 0.0
        self._report_recovery()
        return self.interval_seconds

    async def _send_entries(self, entries: Sequence[asyncpg.Record]) -> float:
        """Send the events of each tenant, and store how far that got, also if it fails."""
        positions: dict[str, int] = {}
        sent_count, failure = 0, None
        for tenant, events in groupby(await self._build_events(entries), key=attrgetter("tenant")):
            rest = list(events)
            try:
                while rest and failure is None:
                    if self._clock.monotonic() - self._renewed_at > _MAX_LEASE_AGE_SECONDS:
                        await self._store_progress(positions, sent_count, None)
                        positions, sent_count = {}, 0
                    wanted_events = [event for event in rest if self._is_wanted(event)]
                    if wanted_events and wanted_events[0] is not rest[0]:
                        # What is not wanted counts as sent, also if what follows it is refused.
                        positions[tenant] = wanted_events[0].sequence
                    count = await self._send(wanted_events) if wanted_events else 0
                    has_all = count == len(wanted_events)
                    end = len(rest) if has_all else rest.index(wanted_events[count - 1]) + 1
                    positions[tenant] = rest[end - 1].sequence + 1
                    sent_count += count
                    rest = rest[end:]
            except SinkFailure as error:
                failure = str(error)
                # The next round begins behind this tenant: what a receiver refuses of one does not hold up the others.
                self._after_tenant = tenant
                break
        await self._store_progress(positions, sent_count, failure)
        return 0.0 if failure is None else self._note_failure(failure)

    async def _build_events(self, entries: Sequence[asyncpg.Record]) -> list[OutgoingEvent]:
        events = []
        for number, row in enumerate(entries, 1):
            digest = row["entry_digest"]
            events.append(
                build_event(
                    tenant=row["tenant"],
                    entry_id=str(row["entry_id"]),
                    sequence=row["leaf_index"],
                    call_id=None if row["call_id"] is None else str(row["call_id"]),
                    entry=row["entry"],
                    digest={
                        "entry_size": row["entry_size"],
                        "entry_sha256": None if digest is None else digest.hex(),
                    },
                    base_url=self._base_url,
                )
            )
            if number % _BUILD_EVENTS == 0:
                await asyncio.sleep(0)
        return events

    def _is_wanted(self, event: OutgoingEvent) -> bool:
        """Tell whether an event has a type that the sink wants; of an opaque one that is not known."""
        if self._settings.types == _EVERY or event.type == OPAQUE_TYPE:
            return True
        return any(matches_glob(each, glob) for each in event.types for glob in self._settings.types)

    async def _send(self, events: Sequence[OutgoingEvent]) -> int:
        """Send the first of a tenant's events, fewer if they were refused; return how many were acknowledged."""
        tenant = events[0].tenant
        refusals = self._refusals.pop(tenant, 0)
        batch = events[: _limit_batch(refusals)]
        try:
            count = await self._sink.send(batch)
        except Exception as error:
            self._refusals[tenant] = min(refusals + 1, _MAX_REFUSALS)
            reason = str(error)
            if not isinstance(error, SinkFailure):
                # Whatever a client library raises, the cursor waits and the loop goes on.
                log.exception("event_sink_raised", sink=self._name)
                reason = f"the events could not be sent ({type(error).__name__})"
            place = f"event {batch[0].id}" if len(batch) == 1 else f"from event {batch[0].id} on"
            raise SinkFailure(f"{reason} (tenant {tenant}, {place})") from error
        if refusals > _WHOLE_ATTEMPTS:
            self._refusals[tenant] = refusals - 1
        return count

    async def _store_progress(self, positions: dict[str, int], sent_count: int, failure: str | None) -> None:
        async with self._store.write_transaction() as connection:
            await self._renew(connection)
            if positions:
                await connection.execute(_SQL["move_positions"], self._name, list(positions), list(positions.values()))
            if failure is None:
                await connection.execute(_SQL["record_success"], self._name, sent_count)
            else:
                await connection.execute(_SQL["record_failure"], self._name, failure)
        self._metrics.record_sent_events(self._name, sent_count)
        if failure is None:
            self._failures = 0
            if self._clock.monotonic() - self._failed_at >= _REPORT_SECONDS:
                self._report_recovery()

    def _note_failure(self, failure: str) -> float:
        """Count a failure; return how long to wait before the next attempt."""
        self._metrics.record_event_failure(self._name)
        self._failed_at = self._clock.monotonic()
        if not self._is_reported:
            log.warning("event_sink_failed", sink=self._name, reason=failure, advice="it is tried again; events wait")
            self._is_reported = True
        pause = _FIRST_PAUSE_SECONDS * (1 << min(self._failures, _MAX_DOUBLINGS))
        self._failures += 1
        return min(pause, _MAX_PAUSE_SECONDS) * self._rng.uniform(0.5, 1.0)

    def _report_recovery(self) -> None:
        """Report that a sink takes events again, once for each failure that was reported."""
        if self._is_reported:
            log.info("event_sink_recovered", sink=self._name)
            self._is_reported = False

    async def _renew(self, connection: Connection) -> None:
        await self._lease.renew(connection)
        self._renewed_at = self._clock.monotonic()

    async def _measure_lag(self) -> None:
        """Measure the age of the oldest entry that the sink has not got, whichever process sends."""
        async with self._store.write_transaction() as connection:
            if self._settings.tenants != _EVERY:
                self._tenants = select_tenants(self._settings, await connection.fetch(_SQL["list_tenant_names"]))
            self._metrics.event_lag.labels(self._name).set(await load_lag(connection, self._name, self._tenants))


def _limit_batch(refusals: int) -> int:
    """Limit how many events are sent at once after so many refusals: all of them first, one at last."""
    return max(_BATCH_EVENTS >> _BATCH_HALVINGS * max(refusals - _WHOLE_ATTEMPTS + 1, 0), 1)


def select_tenants(settings: EventSinkSettings, rows: Sequence[asyncpg.Record]) -> list[str]:
    """Select the tenants whose events a sink gets."""
    names = (row["tenant"] for row in rows)
    return [name for name in names if any(matches_glob(name, glob) for glob in settings.tenants)]


async def load_lag(connection: Connection, sink: str, tenants: Sequence[str] | None) -> float:
    """Load the age in seconds of the oldest entry that a sink has not got, or 0."""
    row = await connection.fetchrow(_SQL["load_lag"], sink, tenants)
    assert row is not None
    if row["entry_id"] is None:
        return 0.0
    now_ms: int = row["now_ms"]
    return max(now_ms - parse_id_time_ms(str(row["entry_id"])), 0) / 1000
