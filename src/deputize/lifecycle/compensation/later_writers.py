"""Find who changed the same thing after a call that is to be taken back: that is never overwritten."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from deputize.core.caller import Caller, parse_agents
from deputize.core.errors import ChangedSince, Unavailable, UndoTooBroad
from deputize.lifecycle.call_access import may_reach
from deputize.lifecycle.journal_reader import read_journal
from deputize.lifecycle.phases import Authorized, Claim
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

MAX_UNDOS_IN_TURN: Final = 20
_SQL = load_statements("journal")
_RETRY_MS: Final = 5_000


async def find_later_writers(
    connection: Connection,
    tenant: str,
    entry_ids: Sequence[str],
    *,
    planned_ids: Sequence[str] = (),
    call_id: str | None = None,
) -> dict[str, asyncpg.Record]:
    """Find, by journal entry, the newest call that changed the same later, but for this call and for planned undos.

    Also one that changed it at the same time, planned or not.
    """
    if not entry_ids:
        return {}
    rows = await connection.fetch(_SQL["find_later_writers"], tenant, list(entry_ids), list(planned_ids), call_id)
    return {str(row["id"]): row for row in rows}


async def describe_later_writer(runtime: Runtime, caller: Caller, row: asyncpg.Record) -> str:
    """Name who changed the same thing later, as far as the caller may know, and say what to do."""
    when = "at the same time" if row["is_concurrent"] else "later"
    what_to_do = "it is not known which came last, so restore it by hand" if row["is_concurrent"] else "undo that first"
    if not await may_reach(runtime, caller, row, for_auditor=True):
        return f"another caller changed the same {when}"
    agents = parse_agents(row["caller_agent"])
    who = f"{agents[0]} for {row['caller_user']}" if agents else row["caller_user"]
    return f"{who} changed the same {when}, with {row['tool']} in call {row['call_id']}: {what_to_do}"


async def require_no_later_writer(runtime: Runtime, authorized: Authorized, claim: Claim) -> None:
    """Refuse to begin a call that takes back what someone changed since: it may have waited long for its approval.

    Called once the call's intent is durable. A run has its resource locks by then, so that no other run can write in
    between. A flow is checked when it begins for the first time; after that, its own steps are the later writers.

    A chain of undos of undos ends here, too: each one turns what is recorded of all before it.
    """
    call = authorized.call
    entry_id = call.request.undoes
    if entry_id is None or (authorized.contract.flow is not None and claim.epoch > 1):
        return
    try:
        async with read_journal(runtime, call.tenant) as connection:
            undo_count = await connection.fetchval(_SQL["count_undos_below"], call.tenant, entry_id, MAX_UNDOS_IN_TURN)
            writers = await find_later_writers(connection, call.tenant, [entry_id], call_id=claim.call_id)
    except UndoTooBroad as problem:
        raise Unavailable(problem.message, retry_after_ms=_RETRY_MS, nothing_happened=True).replace(
            is_recorded=True
        ) from problem
    if undo_count >= MAX_UNDOS_IN_TURN:
        message = f"it was taken back and done again {MAX_UNDOS_IN_TURN} times in turn: call its tool instead"
        raise ChangedSince(message, nothing_happened=True).replace(is_recorded=True)
    if entry_id in writers:
        message = await describe_later_writer(runtime, call.caller, writers[entry_id])
        raise ChangedSince(message, nothing_happened=True).replace(is_recorded=True)
