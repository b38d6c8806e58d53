"""Build the tasks that run in every gateway process beside its calls."""

from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.settings.urls import get_base_url
from deputize.evidence.tenant_log.witness_client import load_witnesses
from deputize.execute.egress import Egress
from deputize.lifecycle.runtime import Runtime
from deputize.operations.approvals.escalation import ApprovalEscalator
from deputize.operations.background.account_revocations import AccountRevocations
from deputize.operations.background.audit_index_merge import AuditIndexMerge
from deputize.operations.background.circuit_sync import CircuitSync
from deputize.operations.background.deprecation_reports import DeprecationReports
from deputize.operations.background.erasures import ErasureContinuation
from deputize.operations.background.events.publisher import EventPublisher
from deputize.operations.background.events.sink_factory import open_sink
from deputize.operations.background.log_sequencer import LogSequencer
from deputize.operations.background.log_witnessing import LogWitnessing
from deputize.operations.background.measurement_storage import MeasurementStorage
from deputize.operations.background.queue_watch import QueueWatch
from deputize.operations.background.retention import Retention
from deputize.operations.background.sweeper import Sweeper
from deputize.operations.background.worker_watch import WorkerWatch
from deputize.operations.servers.monitor import ServerMonitor
from deputize.store.epoch_watcher import EpochWatcher


def build_background_tasks(
    runtime: Runtime, monitor: ServerMonitor, worker_watch: WorkerWatch, egress: Egress
) -> dict[str, PeriodicTask | EpochWatcher]:
    """Build the tasks by their names, in the order in which they start."""
    sequencer = LogSequencer(
        runtime.store,
        runtime.keys,
        runtime.clock,
        boot_id=runtime.lease.boot_id,
        lineage=runtime.lineage,
        public_url=get_base_url(runtime.settings),
    )
    return {
        "sweeper": Sweeper(runtime),
        "retention": Retention(runtime),
        "account revocations": AccountRevocations(runtime),
        "erasures": ErasureContinuation(runtime),
        "deprecation reports": DeprecationReports(runtime),
        "measurement storage": MeasurementStorage(runtime),
        "audit index merge": AuditIndexMerge(runtime),
        "log sequencer": sequencer,
        "circuit sync": CircuitSync(runtime),
        "approval escalation": ApprovalEscalator(runtime),
        **_build_event_publishers(runtime),
        "worker watch": worker_watch,
        "queue watch": QueueWatch(runtime),
        "epoch watcher": _build_epoch_watcher(runtime, monitor),
        **_build_witnessing(runtime, sequencer, egress),
    }


def _build_epoch_watcher(runtime: Runtime, monitor: ServerMonitor) -> EpochWatcher:
    return EpochWatcher(
        runtime.store,
        current_epochs=monitor.list_epochs,
        refresh=monitor.refresh,
        seconds=runtime.settings.timing.refresh_seconds,
    )


def _build_event_publishers(runtime: Runtime) -> dict[str, PeriodicTask]:
    """Build a publisher for each sink of the settings."""
    return {
        f"event sink {sink.name}": EventPublisher(
            sink,
            open_sink(sink, runtime.keys, runtime.clock),
            runtime.store,
            runtime.metrics,
            runtime.clock,
            boot_id=runtime.lease.boot_id,
            base_url=get_base_url(runtime.settings) or "",
        )
        for sink in runtime.settings.events.sinks
    }


def _build_witnessing(runtime: Runtime, sequencer: LogSequencer, egress: Egress) -> dict[str, PeriodicTask]:
    """Build the task that has checkpoints cosigned; none without witnesses."""
    settings = runtime.settings.log
    witnesses = load_witnesses(settings)
    if not witnesses:
        return {}
    task = LogWitnessing(
        runtime.store,
        runtime.clock,
        witnesses,
        threshold=settings.threshold,
        send=lambda url, body: egress.request("POST", url, body=body, headers={"content-type": "text/plain"}),
        metrics=runtime.metrics,
        is_sequencer=lambda: sequencer.is_sequencer,
    )
    return {"log witnessing": task}
