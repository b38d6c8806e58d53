"""Roll a run back to one of its named checkpoints."""

import contextlib
from typing import Any
from uuid import UUID

import asyncpg

from deputize.acts.act import commit_act
from deputize.core.caller import Caller
from deputize.core.contract.contract import is_safe_to_repeat
from deputize.core.errors import CallNotFound, CheckpointNotFound, NotRetryable, UnsealFailed
from deputize.core.states import State
from deputize.govern.token_authorization import require_full_admin
from deputize.lifecycle.call_access import may_reach
from deputize.lifecycle.runtime import Runtime
from deputize.runs.checkpoint_writer import CheckpointReader
from deputize.runs.checkpoints import unseal_state
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("checkpoints")
_STARTED_STATES = [State.RUNNING, State.UNKNOWN]


class Rollbacks:
    """Sends runs back to named checkpoints, for the caller who made the run or an administrator."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def roll_back_run(self, caller: Caller, call_id: str, name: str) -> dict[str, Any]:
        """Requeue a run from a checkpoint, with its own grant, and fence the worker that executes it now.

        What the run did stays done, so only tools that are safe to repeat can be rolled back.
        """
        runtime, call_id = self._runtime, _parse_call_id(call_id)
        keys = await runtime.keys.get(caller.tenant)

        async def act(connection: Connection) -> None:
            row = await self._load_run(connection, caller, call_id)
            seq = await _find_checkpoint(connection, keys, call_id, name)
            await connection.execute(_SQL["delete_checkpoints_after"], caller.tenant, call_id, seq)
            is_queued = row["state"] == State.QUEUED or await connection.fetchval(
                _SQL["requeue_run"], caller.tenant, call_id, row["owner_epoch"], _STARTED_STATES
            )
            if not is_queued:
                raise NotRetryable("cancellation of this call was requested", details={"call_id": call_id})

        await commit_act(runtime, caller, "rollback", f"{call_id} {name}", act, ())
        return {"call_id": call_id, "state": State.QUEUED, "checkpoint": name}

    async def _load_run(self, connection: Connection, caller: Caller, call_id: str) -> asyncpg.Record:
        row = await connection.fetchrow(_SQL["lock_run_to_roll_back"], caller.tenant, call_id)
        is_own = row is not None and caller.is_maker_of(row["caller_user"], row["caller_agent"])
        if row is None or not await may_reach(self._runtime, caller, row):
            raise _build_not_found(call_id)
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        contract = authority.tools.get_entry(row["tool"]).by_version[row["version"]].contract
        # A narrower delegation than the tool needs, or a read-only administrator, repeats nothing.
        if is_own:
            authority.check_token(caller, contract)
        else:
            require_full_admin(caller)
        state = State(row["state"])
        if state is not State.QUEUED and state not in _STARTED_STATES:
            raise NotRetryable(f"the call has ended as {state}", details={"call_id": call_id, "state": state})
        if not is_safe_to_repeat(contract):
            raise NotRetryable(
                f"the service behind {row['tool']} cannot recognise a repeated call",
                details={"call_id": call_id, "tool": row["tool"]},
            )
        return row


async def _find_checkpoint(connection: Connection, keys: KeySet, call_id: str, name: str) -> int:
    """Find the newest checkpoint of a name that can be decrypted and verified."""
    rows = await connection.fetch(_SQL["list_checkpoints"], keys.tenant, call_id)
    load_checkpoint = CheckpointReader(connection, keys.tenant, call_id)
    for each in rows:
        row = await load_checkpoint(each["seq"]) if each["name"] == name else None
        if row is None:
            continue
        with contextlib.suppress(UnsealFailed):
            unseal_state(keys, call_id, row, None if row.parent is None else await load_checkpoint(row.parent))
            return row.seq
    names = sorted({each["name"] for each in rows if each["name"] is not None})
    raise CheckpointNotFound(f"this run has no readable checkpoint {name[:100]}", details={"names": names})


def _parse_call_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise _build_not_found(text) from None


def _build_not_found(call_id: str) -> CallNotFound:
    return CallNotFound("no run has this id, or it is not yours", details={"call_id": call_id[:64]})
