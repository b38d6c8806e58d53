"""Open a worker, which executes runs, sends webhooks and notifications, and reconciles."""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from deputize.composition.gateway import get_lifecycle
from deputize.composition.started_services import start_services
from deputize.execute.egress import Egress
from deputize.operations.approvals.notifications.notifier import ApprovalNotifier
from deputize.operations.background.deliveries import Deliveries
from deputize.operations.background.reconciler import Reconciler
from deputize.operations.gateway import Gateway

if TYPE_CHECKING:
    from deputize.operations.background.worker import Worker


@contextlib.asynccontextmanager
async def open_worker(gateway: Gateway) -> AsyncIterator["Worker"]:
    """Execute runs in this process until the block ends."""
    # The engine takes half a second to import; a gateway without a worker does not need it.
    from deputize.operations.background.worker import Worker  # noqa: PLC0415 - see above
    from deputize.runs.engine import DurableEngine  # noqa: PLC0415 - see above

    lifecycle = get_lifecycle(gateway)
    runtime = lifecycle.runtime
    engine = DurableEngine(
        runtime.store.direct_dsn,
        executor=runtime.lease.boot_id,
        concurrency=runtime.settings.runs.at_once,
        poll_seconds=runtime.settings.runs.poll_seconds,
    )
    # A separate egress: callers must not reach hosts that the operator named for other purposes.
    egress = Egress(allow_hosts=frozenset(runtime.settings.webhooks.hosts))
    senders = (Deliveries(runtime, egress.send), ApprovalNotifier(runtime, egress.send))
    worker = Worker(lifecycle, engine)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(egress.aclose)
        await start_services(stack, *senders, Reconciler(lifecycle), worker)
        yield worker
