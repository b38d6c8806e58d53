"""Watch for changes of a tenant's authority: LISTEN is fast, and a poll covers lost notifications.

Neither has to be in time: the commit barrier checks the epochs of every call.
"""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import structlog

from deputize.core.caller import Epochs
from deputize.core.event_loop.task_cancellation import cancel_task
from deputize.core.event_loop.timed_wait import wait_for_event
from deputize.store.pool import CONNECTION_ERRORS, Store
from deputize.store.queries import load_statements

CHANNEL = "deputize_epochs"
_SQL = load_statements("epochs")
log = structlog.get_logger(__name__)


class EpochWatcher:
    """Calls `refresh(tenant, epochs)` for every known tenant whose epochs in the database are newer."""

    def __init__(
        self,
        store: Store,
        *,
        current_epochs: Callable[[], dict[str, Epochs]],
        refresh: Callable[[str, Epochs], Awaitable[object]],
        seconds: float,
    ) -> None:
        self._store = store
        self._current_epochs = current_epochs
        self._refresh = refresh
        self._seconds = seconds
        self._wake_event = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start to listen and to poll."""
        self._tasks = [
            asyncio.create_task(self._listen(), name="epochs-listen"),
            asyncio.create_task(self._poll(), name="epochs-poll"),
        ]

    @property
    def is_alive(self) -> bool:
        """True while both tasks run."""
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        """Cancel both tasks and wait for their end."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await cancel_task(task)

    async def _poll(self) -> None:
        while True:
            await wait_for_event(self._wake_event, self._seconds)
            self._wake_event.clear()
            try:
                await self.refresh_stale_tenants()
            except CONNECTION_ERRORS as error:
                log.warning("snapshot_not_refreshed", reason=repr(error))

    async def refresh_stale_tenants(self) -> None:
        """Compare the epochs of all known tenants with the database, and refresh those that changed."""
        epochs_by_tenant = self._current_epochs()
        if not epochs_by_tenant:
            return
        async with self._store.write_transaction() as connection:
            rows = await connection.fetch(_SQL["load_epochs_of_tenants"], list(epochs_by_tenant))
        for tenant, registry, policy, revocation in rows:
            newest = Epochs(registry=registry, policy=policy, revocation=revocation)
            if not epochs_by_tenant[tenant].is_at_least(newest):
                await self._try_refresh(tenant, newest)

    async def _try_refresh(self, tenant: str, newest: Epochs) -> None:
        try:
            await self._refresh(tenant, newest)
        except CONNECTION_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 -- an error of one tenant must not stop the watch over all others
            log.error("tenant_not_refreshed", tenant=tenant, reason=type(error).__name__)

    async def _listen(self) -> None:
        while True:
            try:
                connection = await asyncpg.connect(self._store.direct_dsn)
                try:
                    disconnect_event = asyncio.Event()
                    connection.add_termination_listener(lambda _: disconnect_event.set())  # noqa: B023 -- called only while this iteration runs
                    await connection.add_listener(CHANNEL, lambda *_: self._wake_event.set())
                    # Notifications from before this connection were missed, so poll now.
                    self._wake_event.set()
                    await disconnect_event.wait()
                finally:
                    connection.terminate()
            except CONNECTION_ERRORS as error:
                log.info("not_listening", reason=repr(error))
            await asyncio.sleep(self._seconds)
