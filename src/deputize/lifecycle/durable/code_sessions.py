"""Keep the variables of programs between calls of `code.run`: a call with a session is a cell of it.

A session has the id of the call that began it, and its state is sealed beside that call, kept and erased like its
input. Only the caller who began it, the same person with the same agent, finds it. The state is what the interpreter
serializes between programs: it comes from this database and goes into a sandbox of the same caller.

A cell takes the session when it begins, and another cell is refused meanwhile. A cell that has ended holds nothing, so
that nothing is left to release whatever dies. The state changes in the transaction that records that a cell succeeded,
and in no other: any other end leaves the session as it was before the cell.
"""

import asyncio
import base64
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final
from uuid import UUID

import orjson

from deputize.core.settings import CodeSettings
from deputize.core.value_types import frozen
from deputize.lifecycle.phases import CallContext
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("code_sessions")
_FLOWS = load_statements("flows")
NEW_SESSION: Final = "new"
_MAX_NAMES: Final = 500


@frozen
class CodeSession:
    """A session as a cell finds it: how many cells it has had, what they left, and which tools they named."""

    id: str
    cells: int
    state: bytes
    names: frozenset[str]

    def describe(self, *, was_kept: bool) -> dict[str, Any]:
        """Describe it in what a cell returns: it has one more cell if this one was kept."""
        return {"id": self.id, "cells": self.cells + was_kept}


class SessionRefused(Exception):
    """A cell cannot begin; `kind` says why, as the failure of a program does."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


async def begin_cell(runtime: Runtime, call: CallContext, settings: CodeSettings, wanted: str) -> CodeSession:
    """Take the session that a cell wants, or begin one; raise SessionRefused if it cannot be had.

    Each worker that goes on with the cell finds the same.
    """
    if not settings.sessions:
        raise SessionRefused("session_gone", "there are no sessions here: builtin.code.sessions is 0")
    keys, oldest = await runtime.keys.get(call.tenant), _build_oldest_id(runtime, settings)
    session_id = call.call_id if wanted == NEW_SESSION else wanted
    async with runtime.store.write_transaction() as connection:
        document = await _load(connection, keys, call, session_id)
        if document is None and wanted == NEW_SESSION:
            await _require_room(connection, call, settings, oldest)
            document = {"format": _name_format(settings), "cells": 0, "state": "", "names": [], "held_by": None}
        is_held = document is not None and document["held_by"] == call.call_id
        if document is None or (session_id < oldest and not is_held):
            raise SessionRefused("session_gone", "there is no such session of yours, or it has expired")
        if document["format"] != _name_format(settings):
            raise SessionRefused("session_gone", "the session began with another interpreter or memory limit")
        holder = document["held_by"]
        is_free = is_held or holder is None
        # A call whose row is gone has ended long ago.
        if not is_free and await connection.fetchval(_SQL["has_call_ended"], call.tenant, holder) is False:
            raise SessionRefused("session_busy", f"another cell of the session has not ended: call {holder}")
        if not is_held:
            await _save(connection, keys, call, session_id, {**document, "held_by": call.call_id})
    return CodeSession(
        id=session_id,
        cells=document["cells"],
        state=base64.b64decode(document["state"]),
        names=frozenset(document["names"]),
    )


async def keep_cell(
    connection: Connection, keys: KeySet, call: CallContext, session: CodeSession, state: str, names: frozenset[str]
) -> bool:
    """Keep what a cell that succeeded has left, with the record of its end; False if the cell has ended before.

    The caller has locked the record of its call.
    """
    flow = await connection.fetchrow(_FLOWS["load_flow"], call.tenant, call.call_id)
    document = await _load(connection, keys, call, session.id)
    if flow is None or flow["has_ended"] or document is None or document["held_by"] != call.call_id:
        return False
    document |= {
        "cells": session.cells + 1,
        "state": state,
        "names": sorted(session.names | names)[:_MAX_NAMES],
        "held_by": None,
    }
    await _save(connection, keys, call, session.id, document)
    return True


async def drop_session(connection: Connection, call: CallContext, session: CodeSession) -> bool:
    """Drop a session that this call began, and whose first cell failed; False if it had another one before."""
    if session.id != call.call_id:
        return False
    await connection.execute(_SQL["save_session"], call.tenant, session.id, b"")
    return True


async def _require_room(connection: Connection, call: CallContext, settings: CodeSettings, oldest: str) -> None:
    await connection.fetchval(_SQL["lock_caller_sessions"], call.tenant, call.call_id)
    count = await connection.fetchval(_SQL["count_caller_sessions"], call.tenant, call.call_id, oldest)
    if count >= settings.sessions:
        raise SessionRefused("sessions", f"you have {count} sessions, and may have {settings.sessions}")


async def _load(connection: Connection, keys: KeySet, call: CallContext, session_id: str) -> dict[str, Any] | None:
    ciphertext = await connection.fetchval(_SQL["load_session"], call.tenant, call.call_id, session_id)
    if not ciphertext:
        return None
    # It may be large.
    document: dict[str, Any] = await asyncio.to_thread(_unseal, keys, session_id, ciphertext)
    return document


def _unseal(keys: KeySet, session_id: str, ciphertext: bytes) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(keys.unseal(session_id, "session", ciphertext))
    return document


async def _save(
    connection: Connection, keys: KeySet, call: CallContext, session_id: str, document: Mapping[str, Any]
) -> None:
    sealed = await asyncio.to_thread(lambda: keys.seal(session_id, "session", orjson.dumps(document)))
    await connection.execute(_SQL["save_session"], call.tenant, session_id, sealed)


def _name_format(settings: CodeSettings) -> str:
    """Name what can go on with a state: the release of the interpreter that wrote it, and the limit inside of it."""
    return f"pydantic-monty {version('pydantic-monty')}, {settings.memory_mb} MB"


def _build_oldest_id(runtime: Runtime, settings: CodeSettings) -> str:
    """Build an id of the time before which sessions have expired: ids begin with the time at which they were made."""
    oldest_ms = runtime.clock.epoch_ms() - 60_000 * settings.session_minutes
    return str(UUID(int=max(oldest_ms, 0) << 80))
