"""A report has every call that was made before it, also those whose counts another task is just storing."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import asyncpg

from deputize.operations.admin.deprecations import DeprecationRequest
from tests.support.gateway_lab import GatewayLab
from tests.support.scripted_tools import TOOLS


async def _register(lab: GatewayLab, name: str) -> None:
    contract = TOOLS[0].contract.model_copy(update={"name": name, "version": "1.0.0"})
    await lab.gateway.commands.register_tool(await lab.make_admin(), contract)


async def _report_while_storing(
    lab: GatewayLab, table: str, store: Coroutine[Any, Any, None], report: Coroutine[Any, Any, dict[str, Any]]
) -> dict[str, Any]:
    """Ask for a report while the counts before it wait to be written into a table."""
    blocker = await asyncpg.connect(lab.dsn)
    try:
        async with blocker.transaction():
            # Others may read it, and not write to it.
            await blocker.execute(f"lock table deputize.{table} in share mode")
            storing = asyncio.create_task(store)
            await lab.wait_for_blocked_query(f"%deputize.{table}%")
            reporting = asyncio.create_task(report)
            await asyncio.wait({reporting}, timeout=0.5)
            assert not reporting.done(), "it did not wait for what is being stored"
        await storing
        return await reporting
    finally:
        await blocker.close()


async def test_a_report_of_service_levels_waits_for_counts_that_are_being_stored(lab: GatewayLab) -> None:
    await _register(lab, "measured")
    for _ in range(3):
        await lab.call("measured", "x")
    admin, runtime = await lab.make_admin(), lab.runtime
    report = await _report_while_storing(
        lab,
        "call_measurements",
        runtime.call_measurements.store_measurements(runtime.store),
        lab.gateway.service_levels.report_levels(admin, "lab.measured", None, 7),
    )
    assert [each["calls"] for each in report["versions"]] == [3]


async def test_a_report_of_deprecated_uses_waits_for_counts_that_are_being_stored(lab: GatewayLab) -> None:
    await _register(lab, "ending")
    admin, runtime = await lab.make_admin(), lab.runtime
    await lab.gateway.deprecations.deprecate_version(admin, "lab.ending", "1.0.0", DeprecationRequest())
    for _ in range(3):
        await lab.call("ending", "x")
    report = await _report_while_storing(
        lab,
        "deprecated_uses",
        runtime.deprecated_uses.store_uses(runtime.store),
        lab.gateway.deprecations.report_usage(admin, "lab.ending", "1.0.0"),
    )
    assert report["calls"] == 3
