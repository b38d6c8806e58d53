"""Open a gateway: the only module that knows every package. It starts what `composition/` builds, in order.

composition/runtime.py           what every call needs: database, keys, drivers, limits, records
composition/identity.py          what recognizes callers
composition/background_tasks.py  what runs beside calls
composition/gateway.py           what interfaces can ask for
composition/worker.py            what executes runs
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from deputize.composition.background_tasks import build_background_tasks
from deputize.composition.gateway import build_gateway, get_lifecycle
from deputize.composition.identity import build_token_verifier
from deputize.composition.operator_hosts import collect_operator_hosts
from deputize.composition.runtime import build_hooks, open_runtime
from deputize.composition.started_services import start_services
from deputize.composition.worker import open_worker
from deputize.core.call_report import ReportCall, ReportToolError
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.contract.tools import ProjectTool, PythonTool
from deputize.core.hooks import LoadedHook
from deputize.core.settings import Settings
from deputize.execute.drivers.error_reports import ReportingDriver
from deputize.execute.drivers.python import PythonDriver
from deputize.execute.egress import Egress
from deputize.govern.approvals.approval_codes import ApprovalCode, ApprovalCodes
from deputize.govern.approvals.confirmation_codes import ConfirmationCode, ConfirmationCodes
from deputize.operations.approvals.terminal_decisions import show_open_codes
from deputize.operations.background.worker_watch import WorkerWatch
from deputize.operations.bootstrap import bootstrap_gateway, compare_files, list_tenants, register_services
from deputize.operations.calls.result_reads import ResultReads
from deputize.operations.gateway import Gateway
from deputize.operations.servers.monitor import ServerMonitor
from deputize.operations.views.consistency_sources import log_ignored_sources
from deputize.operations.views.health import BackgroundTask, Health
from deputize.store.instance_lock import InstanceLock
from deputize.store.pseudonyms import Pseudonyms

__all__ = ["get_lifecycle", "open_gateway", "open_worker"]

# How long a development gateway waits for its servers, so that it can report their state.
_SERVER_WAIT_SECONDS = 2.0


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings,
    *,
    tools: Sequence[ProjectTool] = (),
    hooks: Sequence[LoadedHook] = (),
    development: bool = False,
    worker: bool = False,
    applies_files: bool = True,
    show_code: Callable[[ApprovalCode], None] | None = None,
    instance_lock: InstanceLock | None = None,
    show_confirmation: Callable[[ConfirmationCode], None] | None = None,
    report_call: ReportCall | None = None,
    report_tool_error: ReportToolError | None = None,
    replaces_versions: bool = False,
    holds_changes: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[Gateway]:
    """Open a whole gateway, with a worker inside if requested; start services in order and stop them in reverse.

    Without `applies_files` it registers no tools and activates no policies: it works with what is active already, and
    says where the project's files differ. `show_code` and `show_confirmation` print the codes that people decide and
    confirm with to the terminal of a development gateway, while `instance_lock` is held; without the lock no code is
    shown or accepted. `report_call` and `report_tool_error` print there how calls end and what tools raise. With
    `replaces_versions`, a changed contract of the files replaces the registered one under the same number, and edited
    files can be taken over; with `holds_changes` too, other policies than the last wait for a person at the start.
    """
    clock = clock or Clock()
    async with contextlib.AsyncExitStack() as stack:
        egress = Egress(allow_hosts=collect_operator_hosts(settings))
        stack.push_async_callback(egress.aclose)
        hook_chain = build_hooks(settings, hooks, clock)
        stack.callback(hook_chain.close)
        own_code = [each for each in tools if isinstance(each, PythonTool)]
        functions = (
            PythonDriver(own_code) if report_tool_error is None else ReportingDriver(own_code, report_tool_error)
        )
        stack.callback(functions.close)
        runtime = await open_runtime(settings, functions, hook_chain, development, clock, egress, stack)
        runtime = replace(runtime, report_call=report_call)
        functions.add_builtin(ResultReads(runtime.stored_results).build_tool())
        is_usable = (lambda: True) if instance_lock is None else (lambda: instance_lock.is_held)
        if development and show_code is not None:
            runtime = replace(runtime, approval_codes=ApprovalCodes(clock, show_code, is_usable))
        if development and show_confirmation is not None:
            codes = ConfirmationCodes(clock, show_confirmation, is_usable)
            runtime = replace(runtime, confirmation_codes=codes)
        pseudonyms = Pseudonyms(clock)

        async def complete_caller(caller: Caller) -> Caller:
            subjects = caller.pseudonym_subjects
            return replace(caller, pseudonyms=await pseudonyms.get_or_create(runtime.store, caller.tenant, subjects))

        monitor = ServerMonitor(runtime, complete_caller, registers_tools=applies_files)
        worker_watch = WorkerWatch(runtime)
        tasks = build_background_tasks(runtime, monitor, worker_watch, egress)
        background: dict[str, BackgroundTask] = {**tasks, "server monitor": monitor}
        tokens = build_token_verifier(runtime, egress, complete_caller, stack)
        gateway = build_gateway(
            runtime,
            tokens,
            tools,
            Health(runtime, background, lambda: worker_watch.worker_count),
            complete_caller,
            egress,
            monitor,
            development,
            pseudonyms,
            replaces_versions=development and replaces_versions,
        )
        await start_services(stack, *tasks.values())
        if applies_files:
            await bootstrap_gateway(gateway, tools, complete_caller, holds_changes=holds_changes)
            await register_services(gateway, runtime, complete_caller)
        else:
            await compare_files(gateway, runtime.authority, tools)
        # After the operator's own tools: a server's tools take the names that are left.
        await start_services(stack, monitor)
        if development:
            await monitor.wait_for_first_probes(_SERVER_WAIT_SECONDS)
        if settings.consistency:
            await log_ignored_sources(settings.consistency, list_tenants(settings), runtime.authority.load_tools)
        await show_open_codes(runtime)
        if worker:
            inner_worker = await stack.enter_async_context(open_worker(gateway))
            gateway._workers.append(inner_worker)
            background["worker"] = inner_worker
            await worker_watch.refresh()
        yield gateway
