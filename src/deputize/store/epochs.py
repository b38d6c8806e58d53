"""Notices that a tenant's authority changed: LISTEN warms, a poll heals. Neither is trusted to be in time; the commit
barrier is."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import asyncpg
import structlog

from deputize.core.caller import Epochs
from deputize.store.pool import LOST, Store
from deputize.store.queries import load

CHANNEL = "deputize_epochs"
_SQL = load("epochs")
log = structlog.get_logger(__name__)


class EpochWatcher:
    """Calls `refresh(tenant, epochs)` for every known tenant that has newer epochs than it knows of."""

    def __init__(
        self,
        store: Store,
        *,
        known: Callable[[], dict[str, Epochs]],
        refresh: Callable[[str, Epochs], Awaitable[object]],
        seconds: float,
    ) -> None:
        self._store = store
        self._known = known
        self._refresh = refresh
        self._seconds = seconds
        self._nudged = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen(), name="epochs-listen"),
            asyncio.create_task(self._poll(), name="epochs-poll"),
        ]

    @property
    def alive(self) -> bool:
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _poll(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nudged.wait(), self._seconds)
            self._nudged.clear()
            try:
                await self.look()
            except LOST as error:
                log.warning("snapshot_not_refreshed", reason=repr(error))

    async def look(self) -> None:
        known = self._known()
        if not known:
            return
        async with self._store.writing() as connection:
            rows = await connection.fetch(_SQL["epochs_of_all"], list(known))
        for tenant, registry, policy, revocation in rows:
            newest = Epochs(registry=registry, policy=policy, revocation=revocation)
            if not known[tenant].covers(newest):
                await self._try_refresh(tenant, newest)

    async def _try_refresh(self, tenant: str, newest: Epochs) -> None:
        try:
            await self._refresh(tenant, newest)
        except LOST:
            raise
        except Exception as error:  # noqa: BLE001 -- one tenant's trouble must not end the watch over all the others
            log.error("tenant_not_refreshed", tenant=tenant, reason=type(error).__name__)

    async def _listen(self) -> None:
        while True:
            try:
                connection = await asyncpg.connect(self._store.direct_dsn)
                try:
                    lost = asyncio.Event()
                    connection.add_termination_listener(lambda _: lost.set())  # noqa: B023 -- called in this turn only
                    await connection.add_listener(CHANNEL, lambda *_: self._nudged.set())
                    # What was announced before anybody listened was not heard.
                    self._nudged.set()
                    await lost.wait()
                finally:
                    connection.terminate()
            except LOST as error:
                log.info("not_listening", reason=repr(error))
            await asyncio.sleep(self._seconds)
