"""List the resource locks of a run: everything it may write, and a slot under each limit.

Reads take no locks, so they run beside writers. Whether two writers conflict depends on the input of each and on what
its contract declares; a scope that the input leaves open overlaps everything under its resource.
"""

import asyncio

from deputize.core.patterns import matches_glob
from deputize.core.scopes import truncate_scope
from deputize.core.settings.runs import RunLimit
from deputize.lifecycle.phases import Validated
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_rows import CommitResult, ReleaseLocksRow, ResourceLock

_SHARED_NAMESPACE = ""
_ALL_SCOPE = "all"


def list_resource_locks(runtime: Runtime, validated: Validated) -> tuple[ResourceLock, ...]:
    tenant = validated.call.tenant
    locks = {
        ResourceLock(
            namespace=tenant, resource=f"write:{write.resource}", scope=truncate_scope(write.scope), capacity=1
        )
        for write in validated.tool.resolve_writes(validated.call_input)
        # What a flow changes, its steps change, and each takes its own locks.
        if validated.contract.flow is None
    }
    for limit in runtime.settings.runs.limits:
        if _is_applicable(limit, validated):
            namespace = _SHARED_NAMESPACE if limit.across_tenants else tenant
            resource = f"limit:{limit.tools}:{limit.upstream or '*'}"
            locks.add(ResourceLock(namespace=namespace, resource=resource, scope=_ALL_SCOPE, capacity=limit.at_once))
    return tuple(sorted(locks))


def _is_applicable(limit: RunLimit, validated: Validated) -> bool:
    contract = validated.contract
    return matches_glob(contract.full_name, limit.tools) and limit.upstream in (None, contract.external_service)


def release_locks(runtime: Runtime, tenant: str, call_id: str, locks: tuple[ResourceLock, ...]) -> None:
    """Release the locks of an ended run, so that the next run in line starts.

    If the worker dies before this, the periodic cleanup of any other worker does it.
    """
    if locks:
        runtime.queue.put(ReleaseLocksRow(tenant, call_id, locks)).add_done_callback(_consume_exception)


def _consume_exception(future: "asyncio.Future[CommitResult]") -> None:
    if not future.cancelled():
        future.exception()
