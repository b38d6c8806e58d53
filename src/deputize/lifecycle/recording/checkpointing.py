"""Open the checkpoint writer of a call whose contract enables checkpoints."""

from typing import Any, NoReturn

from deputize.lifecycle.phases import Authorized, Claim
from deputize.lifecycle.runtime import Runtime
from deputize.runs.checkpoint_writer import CheckpointScope, CheckpointWriter


async def open_checkpointer(runtime: Runtime, authorized: Authorized, claim: Claim) -> CheckpointWriter:
    """Open the writer, with the checkpoints that a previous owner saved."""
    settings = authorized.contract.checkpoints
    tenant = authorized.call.tenant
    keys = await runtime.keys.get(tenant)
    position = CheckpointScope(
        call_id=claim.call_id,
        epoch=claim.epoch,
        interval=settings.micro_interval_seconds,
        macro_events=settings.macro_events,
    )
    checkpointer = CheckpointWriter(runtime.store, keys, runtime.clock, position)
    if claim.is_takeover:
        await checkpointer.load()
    return checkpointer


async def reject_checkpoint(state: Any, name: str | None, macro: bool) -> NoReturn:
    """Fail a tool that saves a checkpoint its contract does not enable: it would rely on what is not kept."""
    raise RuntimeError("the contract of this tool does not enable checkpoints")
