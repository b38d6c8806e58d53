"""Query calls: the caller who made one can see it, an administrator sees the tenant's, and no one else.

`lifecycle/call_access.py` says who may see which. For a call that has not ended, a reader gets its progress and when
to poll again; a follower gets events as they happen.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from deputize.core.caller import Caller, parse_nearest_agent
from deputize.core.entry_kinds import DRY_RUN
from deputize.core.errors import CallNotFound, TokenExpired, list_problem_types
from deputize.core.event_loop.timed_wait import wait_for_event
from deputize.core.outcome import Envelope
from deputize.core.states import EVENT_BY_STATE, TERMINAL_STATES, State, ToolEvent
from deputize.core.subject import AGENT_PREFIX
from deputize.evidence.agent_tool_events import list_events
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.lifecycle.approval.presentation import describe_request
from deputize.lifecycle.call_access import CallFilter, list_reachable, may_reach, may_read_entry
from deputize.lifecycle.recording.call_history import CallHistory, load_call_history
from deputize.lifecycle.recording.redaction import get_redaction_plan
from deputize.lifecycle.recording.stored_call import StoredInput
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.submit import build_call_links, compute_poll_ms
from deputize.operations.calls.call_watcher import CallWatcher
from deputize.store.keys import KeySet
from deputize.store.queries import load_statements

_SQL = load_statements("calls")
_AUDIT = load_statements("audit_search")
# How often a stream without news checks that its caller may still read it.
_CHECK_SECONDS = 1.0
# Streams that one tenant, and one user with all of their agents, follow at once in one process.
_MAX_STREAMS, _MAX_STREAMS_PER_USER = 256, 64


class CallView(NamedTuple):
    """A call as it is now; `poll_after_ms` says when to poll again if it has not ended."""

    envelope: Envelope
    poll_after_ms: int | None = None


class CallSummary(NamedTuple):
    """A stored call: its id, the tool it ran, and when it was created and ended."""

    call_id: str
    tool: str
    version: str
    created_at: datetime
    ended_at: datetime | None


class CallEvent(NamedTuple):
    """One event of a call. A client that was disconnected sends the last id back, and gets the events since."""

    id: str
    event: ToolEvent
    facts: dict[str, Any]


# The first item of a stream, which is not passed on.
_OPENED = CallEvent("", ToolEvent.PROGRESS, {})


class EventCursor(NamedTuple):
    """How much of a call a client has received: a state under an owner's epoch, and the last progress record."""

    epoch: int = -1
    state: str = ""
    seq: int = 0

    @classmethod
    def parse(cls, event_id: str | None) -> "EventCursor":
        """Parse an event id; anything that is not one starts from the beginning."""
        epoch, _, rest = (event_id or "").partition(".")
        state, _, seq = rest.partition(".")
        if not (epoch.isdecimal() and seq.isdecimal() and len(epoch) < 10 and len(seq) < 10):
            return cls()
        return cls(epoch=int(epoch), state=state, seq=int(seq))

    def __str__(self) -> str:
        return f"{self.epoch}.{self.state}.{self.seq}"


class CallQueries:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._watcher = CallWatcher(runtime.store)
        self._stream_slots = TenantSlots(
            "streams of events",
            _MAX_STREAMS,
            per_user=_MAX_STREAMS_PER_USER,
            advice="Close streams that you do not read, or poll `GET /v1/calls/{call_id}` instead.",
        )

    async def show_call(self, caller: Caller, call_id: str) -> CallView:
        """Return the stored envelope, or the known facts of a call that has not ended or is a read."""
        call_id = _parse_call_id(call_id)
        row = await self.load_row(caller, call_id)
        if row is None:
            return CallView(Envelope(await self.describe_read(caller, call_id)))
        keys = await self._runtime.keys.get(caller.tenant)
        if State(row["state"]) in TERMINAL_STATES:
            ciphertext = row["ciphertext"]
            return CallView(
                Envelope(build_call_facts(row))
                if ciphertext is None
                else Envelope.from_bytes(keys.unseal(call_id, "outcome", ciphertext))
            )
        poll_ms = compute_poll_ms(row["age"])
        facts = {"approval": None, **await self._load_facts(caller, row)}
        return CallView(Envelope({**facts, **await self._load_progress(caller, keys, row, poll_ms)}), poll_ms)

    async def _load_progress(self, caller: Caller, keys: KeySet, row: asyncpg.Record, poll_ms: int) -> dict[str, Any]:
        call_id, ahead = str(row["id"]), None
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["load_newest_progress"], caller.tenant, call_id)
            if row["state"] == State.QUEUED:
                ahead = await connection.fetchval(_SQL["count_runs_ahead"], caller.tenant, call_id)
        latest = {each["partial"]: _decrypt_progress(keys, call_id, each) for each in rows}
        return {
            "progress": latest.get(False),
            "partial_result": latest.get(True),
            "queue": None if ahead is None else {"ahead": ahead},
            "cancel_requested_at": row["cancel_requested_at"].isoformat() if row["cancel_requested_at"] else None,
            "poll_after_ms": poll_ms,
            "links": build_call_links(call_id),
        }

    async def list_calls(self, caller: Caller, *, before: str | None, limit: int) -> list[dict[str, Any]]:
        await self._check_revocation(caller)
        before_id = None if before is None else _parse_call_id(before)

        async def fetch(limits: CallFilter) -> list[asyncpg.Record]:
            async with self._runtime.store.read_transaction(caller.tenant) as connection:
                rows: list[asyncpg.Record] = await connection.fetch(
                    _SQL["list_calls"], caller.tenant, limits.user, before_id, limit, limits.agent,
                    limits.tools, limits.classes, limits.hidden_tools,
                )  # fmt: skip
                return rows

        return [build_call_facts(row) for row in await list_reachable(self._runtime, caller, fetch)]

    async def follow_call(self, caller: Caller, call_id: str, *, after: str | None = None) -> AsyncIterator[CallEvent]:
        """Stream the call's states and progress until it ends; fail at once if there is no such call."""
        events = self._stream_events(caller, _parse_call_id(call_id), EventCursor.parse(after))
        await anext(events)
        return events

    async def _stream_events(self, caller: Caller, call_id: str, cursor: EventCursor) -> AsyncIterator[CallEvent]:
        """Stream the events after the first, which only says that the call can be followed."""
        with (
            self._stream_slots.take(caller),
            self._watcher.watch(caller.tenant, call_id) as (changed, loads),
        ):
            async with loads:
                row, facts = await self._load_call(caller, call_id)
            yield _OPENED
            approval = _get_open_approval(facts)
            while True:
                state, epoch = State(facts["state"]), 0 if row is None else row["owner_epoch"]
                # Also when other groups are asked, or the request changed: the client shows whom the call waits for.
                is_new = (epoch, state) != cursor[:2] or _get_open_approval(facts) not in (None, approval)
                approval = _get_open_approval(facts)
                if is_new and state not in TERMINAL_STATES:
                    cursor = EventCursor(epoch, state, cursor.seq)
                    yield CallEvent(str(cursor), EVENT_BY_STATE[state], facts)
                # The tool's last progress comes before the call's end.
                while row is not None:
                    async with loads:
                        records = await self._load_progress_since(caller, call_id, cursor.seq)
                    if not records:
                        break
                    for record, partial in records:
                        cursor = cursor._replace(seq=record["sequence"])
                        kind = ToolEvent.PARTIAL_RESULT if partial else ToolEvent.PROGRESS
                        yield CallEvent(str(cursor), kind, record)
                if state in TERMINAL_STATES:
                    if is_new:
                        yield CallEvent(str(EventCursor(epoch, state, cursor.seq)), EVENT_BY_STATE[state], facts)
                    return
                await self._wait_for_change(caller, changed)
                async with loads:
                    row, facts = await self._load_call(caller, call_id)

    async def _wait_for_change(self, caller: Caller, changed: asyncio.Event) -> None:
        """Wait until the call may have changed; raise if the caller may follow it no longer."""
        has_changed = False
        while not has_changed:
            has_changed = await wait_for_event(changed, _CHECK_SECONDS)
            if 0 < caller.expires_at <= self._runtime.clock.epoch_ms() // 1000:
                raise TokenExpired("the token expired, so the events ended; the call goes on")
            await self._check_revocation(caller)
        changed.clear()

    async def _load_call(
        self, caller: Caller, call_id: str, *, for_auditor: bool = False
    ) -> tuple[asyncpg.Record | None, dict[str, Any]]:
        row = await self.load_row(caller, call_id, for_auditor=for_auditor)
        if row is not None:
            return row, await self._load_facts(caller, row)
        return None, await self.describe_read(caller, call_id, for_auditor=for_auditor)

    async def _load_facts(self, caller: Caller, row: asyncpg.Record) -> dict[str, Any]:
        """Load a call's facts; with an approval request, also who decides, until when, and why it was denied."""
        if not row["needs_approval"]:
            return build_call_facts(row)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            approval = await connection.fetchrow(_SQL["load_approval_of_call"], caller.tenant, row["id"])
        if approval is None:
            return build_call_facts(row)
        approval_view = describe_request(self._runtime, approval, approval["groups"])
        return {**build_call_facts(row), "approval": {**approval_view, "reason": approval["reason"]}}

    async def _load_progress_since(self, caller: Caller, call_id: str, seq: int) -> list[tuple[dict[str, Any], bool]]:
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_progress_since"], caller.tenant, call_id, seq)
        keys = await self._runtime.keys.get(caller.tenant)
        return [(_decrypt_progress(keys, call_id, row), row["partial"]) for row in rows]

    async def _check_revocation(self, caller: Caller) -> None:
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)

    async def load_row(self, caller: Caller, call_id: str, *, for_auditor: bool = False) -> asyncpg.Record | None:
        """Load the call's row; None for a read that succeeded at once, or if there is no such call."""
        await self._check_revocation(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["load_call"], caller.tenant, _parse_call_id(call_id), False)
        if row is not None and not await may_reach(self._runtime, caller, row, for_auditor=for_auditor):
            raise build_not_found(call_id)
        return row

    async def describe_call(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Describe a call: who made it, of which tool, when, and how it ended; with its approval, if it needs one.

        An auditor may see that of everyone's calls.
        """
        return (await self._load_call(caller, call_id, for_auditor=True))[1]

    async def list_entries(self, caller: Caller, call_id: str) -> list[bytes]:
        """List the audit entries of a call that the caller may see, oldest first."""
        await self.describe_call(caller, call_id)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_entries_of_call"], caller.tenant, _parse_call_id(call_id))
        return [row["entry"] for row in rows]

    async def describe_entries(self, caller: Caller, call_id: str) -> list[dict[str, Any]]:
        """Describe the audit entries of a call that the caller may see, each with the events that it records."""
        return (await self.describe_history(caller, await self.load_history(caller, call_id)))[1]

    async def load_history(self, caller: Caller, call_id: str) -> CallHistory:
        """Load what is stored of a call that the caller may see: an auditor everyone's."""
        await self._check_revocation(caller)
        history = await load_call_history(self._runtime, caller.tenant, _parse_call_id(call_id), with_input=True)
        if history.row is None:
            await self._describe_read(caller, call_id, history.entries, for_auditor=True)
        elif not await may_reach(self._runtime, caller, history.row, for_auditor=True):
            raise build_not_found(call_id)
        return history

    async def describe_history(
        self, caller: Caller, history: CallHistory
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Describe a call as `describe_call` does, without its approval, and each of its audit entries."""
        row, entries = history.row, history.entries
        facts = (
            await self._describe_read(caller, history.call_id, entries, for_auditor=True)
            if row is None
            else build_call_facts(row)
        )
        pseudonyms = sorted({each for entry in entries for each in entry["caller"]})
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_AUDIT["name_pseudonyms"], pseudonyms)
        names = {row["pseudonym"]: row["subject"].removeprefix(AGENT_PREFIX) for row in rows}
        # A person who was erased has no name any more.
        people = [[names.get(each) for each in entry["caller"]] for entry in entries]
        return facts, [
            {"events": list_events(entry), "entry": entry, "user": some[0] if some else None, "agents": some[1:]}
            for entry, some in zip(entries, people, strict=True)
        ]

    async def open_outcome(self, caller: Caller, history: CallHistory) -> dict[str, Any] | None:
        """Open what a call returned; None if it is not stored, as of a read that succeeded, or not for this caller."""
        row = history.row
        if row is None or row["ciphertext"] is None or not await may_reach(self._runtime, caller, row):
            return None
        keys = await self._runtime.keys.get(caller.tenant)
        return await Envelope.from_bytes(keys.unseal(history.call_id, "outcome", row["ciphertext"])).load_fields()

    async def open_arguments(self, caller: Caller, history: CallHistory) -> dict[str, Any] | None:
        """Open the arguments of a call, as approvers see them; None if they are not stored, or not for this caller.

        Those of runs and of calls that needed approval are stored. Its contract says what of them is not shown.
        """
        row = history.row
        if row is None or row["input"] is None or not await may_reach(self._runtime, caller, row):
            return None
        tools = (await self._runtime.authority.load_tenant(caller.tenant)).tools.tools
        version = tools[row["tool"]].by_version.get(row["version"]) if row["tool"] in tools else None
        if version is None:
            return None
        keys, tool = await self._runtime.keys.get(caller.tenant), await version.load_tool()

        def open_input() -> dict[str, Any]:
            stored_input = StoredInput(keys.unseal(history.call_id, "input", row["input"]))
            visible: dict[str, Any] = get_redaction_plan(tool, "input").apply(stored_input.call_input)[0]
            return visible

        return await asyncio.to_thread(open_input)

    async def list_progress(self, caller: Caller, call_id: str) -> list[dict[str, Any]]:
        """List the first 200 progress reports of a call that the caller may see."""
        await self._load_call(caller, call_id)
        return [record for record, _ in await self._load_progress_since(caller, _parse_call_id(call_id), 0)]

    async def find_call(self, caller: Caller, call_id: str) -> CallSummary | None:
        """Find a stored call; None for a read that succeeded at once, or if there is no such call."""
        row = await self.load_row(caller, call_id)
        return None if row is None else summarize_call(row)

    async def describe_read(self, caller: Caller, call_id: str, *, for_auditor: bool = False) -> dict[str, Any]:
        """Describe a read from its audit entry: one that succeeded, or was refused, has neither a result nor a row."""
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_entries_of_call"], caller.tenant, _parse_call_id(call_id))
        entries = [orjson.loads(each["entry"]) for each in rows]
        return await self._describe_read(caller, call_id, entries, for_auditor=for_auditor)

    async def _describe_read(
        self, caller: Caller, call_id: str, entries: Sequence[dict[str, Any]], *, for_auditor: bool = False
    ) -> dict[str, Any]:
        if not entries or not await may_read_entry(self._runtime, caller, entries[-1], for_auditor=for_auditor):
            raise build_not_found(call_id)
        last = entries[-1]
        return {
            "call_id": call_id,
            "state": last.get("outcome", State.RUNNING),
            "tool": {"name": last.get("tool"), "version": last.get("version"), "digest": last.get("digest")},
            "kind": last["kind"],
            "created_at": last["time"],
            "error_number": last.get("error"),
            "trace_id": last["trace"],
            "rules": last.get("rules"),
            "detail": _explain_read(last),
        }


def _explain_read(entry: dict[str, Any]) -> str:
    """Explain what is known of a call that has only audit entries: why it was refused, or why it has no result."""
    if entry["kind"] == "refusal" and "error" in entry:
        kind = next((each for each in list_problem_types() if each.spec.e_number == entry["error"]), None)
        title = "refused" if kind is None else kind.spec.title
        rules = ", ".join(entry.get("rules", ()))
        return f"{title} ({entry['error']}), by {rules}" if rules else f"{title} ({entry['error']})"
    if entry.get("command") == DRY_RUN:
        return "a dry run: nothing was executed, and its preview is not stored"
    return "results of reads are not stored"


def _get_open_approval(facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the open approval request of a call, if it has one."""
    approval: dict[str, Any] | None = facts.get("approval")
    return approval if approval is not None and approval["state"] == "open" else None


def _decrypt_progress(keys: KeySet, call_id: str, row: asyncpg.Record) -> dict[str, Any]:
    fields: dict[str, Any] = orjson.loads(keys.unseal(call_id, "progress", row["report"]))
    return {"call_id": call_id, "progress_id": f"{call_id}:{row['seq']}", **fields}


def _parse_call_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise build_not_found(text) from None


def build_not_found(call_id: str) -> CallNotFound:
    return CallNotFound("no call has this id, or it is not yours", details={"call_id": call_id[:64]})


def summarize_call(row: asyncpg.Record) -> CallSummary:
    """Read the summary of a call from its row."""
    return CallSummary(
        call_id=str(row["id"]),
        tool=row["tool"],
        version=row["version"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
    )


def build_call_facts(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "call_id": str(row["id"]),
        "state": row["state"],
        "tool": {"name": row["tool"], "version": row["version"]},
        "mutation_class": row["mutation_class"],
        "user": row["caller_user"],
        "agent": parse_nearest_agent(row["caller_agent"]) or None,
        "session": row["session"],
        "created_at": row["created_at"].isoformat(),
        "ended_at": row["ended_at"].isoformat() if row["ended_at"] else None,
        "error_slug": row["error"],
        "trace_id": row["trace"],
    }
