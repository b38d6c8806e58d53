"""A rolling restart of two gateways behind HAProxy, under load, and a gateway that stops without a drain."""

import asyncio
from collections.abc import Sequence

from proofs.kit.balancer import DRAIN_SECONDS, SETTLE_SECONDS
from proofs.kit.gateway import GatewayHandle
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.sandbox import Sandbox
from proofs.kit.write_load import Load, run_load

# The balancer tries three times more to reach a gateway that is gone, a second apart.
_RETRY_SECONDS = 5


async def restart_under_load(sandbox: Sandbox, gateways: Sequence[GatewayHandle], url: str, token: str) -> Load:
    """Restart one gateway after the other while calls come in through the balancer."""
    for gateway in gateways:
        gateway.env["DEPUTIZE_SERVER__DRAIN_SECONDS"] = str(DRAIN_SECONDS)
        await gateway.restart()
    await asyncio.sleep(SETTLE_SECONDS)
    async with run_load([url], token, name="rolling", callers=8) as load:
        for gateway in gateways:
            await asyncio.sleep(SETTLE_SECONDS)
            await gateway.restart()
            await asyncio.sleep(SETTLE_SECONDS)
    sandbox.log(f"rolling restart: {load.count} calls, {dict(load.failures) or 'none'} failed")
    return load


async def stop_without_drain(sandbox: Sandbox, gateway: GatewayHandle, url: str, token: str) -> Load:
    """Stop a gateway that does not drain, under the same load: calls that the balancer still sends there fail."""
    await restart_as_variant(gateway, "restore_no_drain")
    await asyncio.sleep(SETTLE_SECONDS)
    async with run_load([url], token, name="undrained", callers=8) as load:
        await asyncio.sleep(SETTLE_SECONDS)
        await gateway.child.stop()
        await asyncio.sleep(_RETRY_SECONDS)
    sandbox.log(f"stopped without a drain: {load.count} calls, {dict(load.failures) or 'none'} failed")
    return load
