"""Disable a tool that is declared as a read and changes state: the one act that a call performs.

The lifecycle finds such a read and is below this package, so it gets the act through its runtime.
"""

from deputize.acts.act import change_authority
from deputize.catalog.registry import set_version_state
from deputize.core.caller import operator_caller
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection


async def disable_mutating_read(runtime: Runtime, tenant: str, contract: Contract, evidence: str) -> None:
    """Disable the version on every gateway; the audit entry has the evidence."""

    async def disable(connection: Connection) -> None:
        await set_version_state(connection, tenant, contract.full_name, contract.version, LifecycleState.DISABLED)

    subject = f"{contract.full_name}@{contract.version} ({evidence})"
    await change_authority(
        runtime, operator_caller(tenant), "disable_mutating_read", subject, disable, is_tightening=True
    )
