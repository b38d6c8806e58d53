"""Plan how calls are taken back: what, in which order, what cannot be, and what others changed since.

The newest effect comes first. An effect on which a later one stands that stays is never overwritten: its step is
blocked, and so are those of the plan below it. A tool that previews its calls is asked whether it still can take back
what it should. Nothing is changed here.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from deputize.catalog.snapshot import TenantTools
from deputize.core.call import CallOrigin, CallRequest, PlannedUndo
from deputize.core.caller import UNDO_SCOPE, Caller, parse_agents
from deputize.core.canonical import canonicalize
from deputize.core.clock import make_first_id
from deputize.core.contract.compensation_binding import BoundCompensation
from deputize.core.errors import MalformedRequest, Problem
from deputize.core.scopes import scopes_overlap
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.value_types import frozen
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.govern.token_authorization import is_tool_visible
from deputize.lifecycle.call_access import may_reach
from deputize.lifecycle.compensation.journal_entries import (
    EntryVerdict,
    Verdict,
    is_taken_back,
    judge_entry,
    load_newest_entries,
)
from deputize.lifecycle.compensation.later_writers import describe_later_writer, find_later_writers
from deputize.lifecycle.journal_reader import load_undone_calls, read_journal
from deputize.lifecycle.recording.redaction import get_redaction_plan
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

MAX_PLAN_CALLS: Final = 1000
# Each uses a connection of the pool for at most a few seconds; calls need some too.
_MAX_PLANS: Final = 4
# So many in one request, within the time that clients wait; they go on with the digest of what is left.
MAX_STEPS: Final = 50
_PREVIEWS_AT_ONCE: Final = 8
_PREVIEW_MS: Final = 5_000
# By how much the clock of a gateway may differ from that of the database.
_MAX_SKEW_MS: Final = 3_600_000
_HIDDEN_TOOL: Final = "the tool that takes it back is not among those that this token lists"
_SQL = load_statements("journal")
_Effect = tuple[str, str, str]


@frozen
class UndoSelection:
    """What to take back: one call, a session, or what an agent did since a time."""

    call_id: str | None = None
    session: str | None = None
    agent: str | None = None
    since: datetime | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.call_id, self.session, self.agent)) != 1:
            raise MalformedRequest("name one of call_id, session and agent", details={"field": "call_id"})
        if self.agent is not None and self.since is None:
            raise MalformedRequest("an agent's calls are taken back since a time", details={"field": "since"})
        if self.call_id is not None:
            try:
                # It is compared with stored ids, and becomes part of the command that a person is to run.
                object.__setattr__(self, "call_id", str(UUID(self.call_id)))
            except ValueError as error:
                raise MalformedRequest("call_id is not the id of a call", details={"field": "call_id"}) from error


@frozen
class ShownArguments:
    """What a step sends, as people are shown it: redacted, with where each value is from, and the agents behind it."""

    arguments: Mapping[str, Any] | None = None
    origins: Mapping[str, str] | None = None
    source_agents: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "arguments": self.arguments,
            "origins": self.origins,
            "source_agents": list(self.source_agents),
        }


_NOTHING_SHOWN: Final = ShownArguments()


@frozen
class UndoStep:
    """One call of the plan: what it changed, whether it can be taken back, and if not, why."""

    entry_id: str
    call_id: str
    at: datetime
    tool: str
    version: str
    user: str
    agents: tuple[str, ...]
    session: str | None
    effects: tuple[_Effect, ...]
    # As the contract declares it, for who may not see the arguments.
    shown_effects: tuple[_Effect, ...]
    is_readable: bool
    compensation_class: str
    undo_until: datetime | None
    verdict: Verdict
    reason: str | None = None
    detail: str | None = None
    compensation: BoundCompensation | None = None
    # A token that lists tools does not see which other one takes a call back.
    hides_tool: bool = False
    sending: ShownArguments | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "entry_id": self.entry_id,
            "call_id": self.call_id,
            "tool": self.tool,
            "version": self.version,
            "at": self.at.astimezone(UTC).isoformat(timespec="milliseconds"),
            "user": self.user,
            "agents": list(self.agents),
            "session": self.session,
            "effects": [{"resource": resource, "op": op, "scope": scope} for resource, op, scope in self.shown_effects],
            "class": self.compensation_class,
            "undo_until": None if self.undo_until is None else self.undo_until.isoformat(timespec="seconds"),
            "verdict": self.verdict,
            "reason": self.reason,
            "detail": self.detail,
            "undo_tool": None if self.compensation is None or self.hides_tool else self.compensation.tool,
            **(_NOTHING_SHOWN if self.sending is None else self.sending).to_json(),
        }


@frozen
class UndoPlan:
    """The steps, newest first. The digest names everything that is still to be done, with which arguments, and what of
    them was shown.
    """

    steps: tuple[UndoStep, ...]
    digest: str
    is_complete: bool
    # What a person's token lacks for all of it; an agent undoes nothing, whatever its scopes.
    missing_scopes: tuple[str, ...]

    def list_ready(self) -> list[UndoStep]:
        return [each for each in self.steps if each.verdict == "ready"]

    def to_json(self) -> dict[str, Any]:
        counts = {name: sum(each.verdict == name for each in self.steps) for name in ("ready", "done", "blocked")}
        return {
            "digest": self.digest,
            "is_complete": self.is_complete,
            "missing_scopes": list(self.missing_scopes),
            **counts,
            "steps": [each.to_json() for each in self.steps],
        }


class UndoPlans:
    """Builds plans from the journal, a few of a tenant at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._slots = TenantSlots("plans to undo", _MAX_PLANS)

    async def plan_undo(self, caller: Caller, selection: UndoSelection) -> UndoPlan:
        """Plan from what the caller may see: their own calls and their agents', or those of the tenant."""
        with self._slots.take(caller):
            return await self.plan_left(caller, selection)

    async def plan_left(self, caller: Caller, selection: UndoSelection) -> UndoPlan:
        """Plan what is left of an undo that was made just now. It needs no slot, so that what was made is told."""
        runtime, tenant = self._runtime, caller.tenant
        authority = await runtime.authority.load_tenant(tenant)
        authority.revocations.check(caller)
        async with read_journal(runtime, tenant) as connection:
            entry_ids = await _find_entries(connection, caller, selection)
            entries, is_complete = await load_newest_entries(connection, tenant, entry_ids[:MAX_PLAN_CALLS])
            is_complete = is_complete and len(entry_ids) <= MAX_PLAN_CALLS
        entries = [each for each in entries if await may_reach(runtime, caller, each[0], for_auditor=True)]
        keys = await runtime.keys.get(tenant)
        selected_ids = {row[0]["id"] for row in entries}
        templates = [await self._load_templates(caller, each, authority.tools) for each in entries]

        def plan_steps() -> list[UndoStep]:
            return [
                _plan_step(caller, entry, selected_ids, template, keys, authority.tools)
                for entry, template in zip(entries, templates, strict=True)
            ]

        steps = await asyncio.to_thread(plan_steps)
        steps = await self._show_arguments(caller, steps, authority.tools)
        ready_ids = [each.entry_id for each in steps if each.verdict == "ready"]
        async with read_journal(runtime, tenant) as connection:
            writers = await find_later_writers(
                connection, tenant, ready_ids, planned_ids=[each.entry_id for each in steps]
            )
        blocks = {
            each: (
                "concurrent" if row["is_concurrent"] else "changed_since",
                await describe_later_writer(runtime, caller, row),
            )
            for each, row in writers.items()
        }
        missing_scopes = _find_missing_scopes(caller, steps, authority.tools)
        refusals = {
            each.entry_id: refusal for each in steps if (refusal := _find_refusal(caller, each, authority)) is not None
        }
        # Each with each other: of a thousand, that would hold everyone up.
        steps = await asyncio.to_thread(_block_steps, steps, blocks, refusals)
        if may_undo(caller):
            previews = await self._preview_steps(caller, steps, authority.tools)
            steps = await asyncio.to_thread(_block_steps, steps, previews, {})
        digest = await asyncio.to_thread(_digest_steps, keys, steps)
        return UndoPlan(steps=tuple(steps), digest=digest, is_complete=is_complete, missing_scopes=missing_scopes)

    async def _load_templates(
        self, caller: Caller, rows: Sequence[asyncpg.Record], tools: TenantTools
    ) -> tuple[_Effect, ...] | None:
        """Load what the contract of a call declares of its effects, which is all that auditors of others' calls see;
        None for who may see the call itself.
        """
        row = rows[0]
        if await may_reach(self._runtime, caller, row):
            return None
        entry = tools.tools.get(row["tool"])
        version = None if entry is None else entry.by_version.get(row["version"])
        resources = () if version is None else (await version.load_tool()).contract.resources
        templates = tuple((each.resource, each.op, each.scope) for each in resources)
        return templates or tuple(dict.fromkeys((each["resource"], each["op"], "*") for each in rows))

    async def _show_arguments(self, caller: Caller, steps: Sequence[UndoStep], tools: TenantTools) -> list[UndoStep]:
        """Add to each step what it sends, redacted as in approval requests.

        The state before a call is for who may undo it: an agent that may change a thing may not be allowed to read it.
        """
        shown = [
            (each, each.compensation)
            for each in steps
            if each.compensation is not None and each.is_readable and not each.hides_tool
        ]
        plans = {
            name: get_redaction_plan(await tools.resolve_version(name).load_tool(), "input")
            for name in {compensation.tool for _, compensation in shown}
        }
        async with read_journal(self._runtime, caller.tenant) as connection:
            undone_calls = await load_undone_calls(connection, caller.tenant, [each.entry_id for each, _ in shown])

        def show(entry_id: str, compensation: BoundCompensation) -> ShownArguments:
            origins = {name: compensation.origins.get(name, "unknown") for name in compensation.arguments}
            visible = plans[compensation.tool].apply(dict(compensation.arguments))[0]
            if not may_undo(caller):
                visible = {
                    name: REDACTION_MARK if origins[name] in ("before", "unknown") else value
                    for name, value in visible.items()
                }
            source_agents = undone_calls[entry_id].agents if entry_id in undone_calls else ()
            return ShownArguments(arguments=visible, origins=origins, source_agents=source_agents)

        sending = await asyncio.to_thread(
            lambda: {each.entry_id: show(each.entry_id, compensation) for each, compensation in shown}
        )
        return [replace(each, sending=sending.get(each.entry_id)) for each in steps]

    async def _preview_steps(
        self, caller: Caller, steps: Sequence[UndoStep], tools: TenantTools
    ) -> dict[str, tuple[str, str]]:
        """Ask the tools of the next steps whether they would do it, and return the reasons of those that would not.

        A step on which another one of the plan stands is not asked: what it finds is not there yet.
        """
        slots = asyncio.Semaphore(_PREVIEWS_AT_ONCE)

        async def preview(step: UndoStep) -> str | None:
            async with slots:
                return await self._preview_step(caller, step)

        next_steps = [each for each in steps if each.verdict == "ready"][:MAX_STEPS]
        asked = [
            step
            for number, step in enumerate(next_steps)
            if step.compensation is not None
            and tools.resolve_version(step.compensation.tool).contract.preview
            and not any(_overlap(each, step) for each in next_steps[:number])
        ]
        answers = await asyncio.gather(*map(preview, asked))
        return {
            step.entry_id: ("would_fail", answer)
            for step, answer in zip(asked, answers, strict=True)
            if answer is not None
        }

    async def _preview_step(self, caller: Caller, step: UndoStep) -> str | None:
        """Return why the step would fail, if its tool knows that."""
        request = replace(build_undo_request(caller, step), dry_run=True, deadline_ms=_PREVIEW_MS)
        outcome = await self._runtime.run_call(self._runtime, caller, request)
        fields = await outcome.envelope.load_fields()
        if outcome.spec is not None:
            return None if outcome.spec.retryable else str(fields["detail"])
        because = fields["would"]["because"]
        return f"not met: {because[0]}" if because else None


def may_undo(caller: Caller) -> bool:
    """Tell whether the caller may undo at all: a person with the authority for it, and no agent."""
    return not caller.agents and UNDO_SCOPE in caller.scopes


def list_planned_undos(caller: Caller, steps: Sequence[UndoStep]) -> list[PlannedUndo]:
    """List the calls that take these steps back, in their order, each with the steps that stand on it."""
    return [
        PlannedUndo(
            request=build_undo_request(caller, step),
            entry_id=step.entry_id,
            undone_call_id=step.call_id,
            undone_tool=step.tool,
            origins={} if step.sending is None else step.sending.origins or {},
            entries_above=frozenset(each.entry_id for each in steps[:number] if _overlap(each, step)),
        )
        for number, step in enumerate(steps)
    ]


def build_undo_request(caller: Caller, step: UndoStep) -> CallRequest:
    """Build the call that takes a step back."""
    compensation = step.compensation
    if compensation is None:
        raise ValueError("a step that is ready has a compensation")
    return CallRequest(
        tool=compensation.tool,
        arguments=dict(compensation.arguments),
        session=caller.session,
        origin=CallOrigin(parent_call_id=step.call_id),
        undoes=step.entry_id,
    )


async def _find_entries(connection: Connection, caller: Caller, selection: UndoSelection) -> list[UUID]:
    """Find the newest entries of a selection, up to one more than a plan holds."""
    since = selection.since
    limits = (None if caller.is_auditor else caller.user, MAX_PLAN_CALLS + 1, since)
    if selection.call_id is not None:
        rows = await connection.fetch(_SQL["find_entries_of_call"], caller.tenant, selection.call_id, *limits)
    elif selection.session is not None:
        rows = await connection.fetch(_SQL["find_entries_of_session"], caller.tenant, selection.session, *limits)
    else:
        assert since is not None
        first_id = make_first_id(int(since.timestamp() * 1000) - _MAX_SKEW_MS)
        rows = await connection.fetch(_SQL["find_entries_of_agent"], caller.tenant, selection.agent, *limits, first_id)
    return [row["id"] for row in rows]


def _list_effects(rows: Sequence[asyncpg.Record]) -> tuple[_Effect, ...]:
    return tuple((each["resource"], each["op"], each["scope"]) for each in rows)


def _plan_step(
    caller: Caller,
    rows: Sequence[asyncpg.Record],
    selected_ids: set[UUID],
    templates: tuple[_Effect, ...] | None,
    keys: KeySet,
    tools: TenantTools,
) -> UndoStep:
    row = rows[0]
    if row["undoes"] in selected_ids and not is_taken_back(row):
        judged = EntryVerdict(verdict="done", reason="is_undo", detail="it took back another call of this plan")
    else:
        judged = judge_entry(row, keys, tools)
    hides_tool = judged.tool is not None and not is_tool_visible(caller, judged.tool)
    return UndoStep(
        entry_id=str(row["id"]),
        call_id=str(row["call_id"]),
        at=row["ended_at"],
        tool=row["tool"],
        version=row["version"],
        user=row["caller_user"],
        agents=parse_agents(row["caller_agent"]),
        session=row["session"],
        effects=_list_effects(rows),
        shown_effects=_list_effects(rows) if templates is None else templates,
        is_readable=templates is None,
        compensation_class=row["compensation_class"],
        undo_until=row["undo_until"],
        verdict=judged.verdict,
        reason=judged.reason,
        detail=_HIDDEN_TOOL if hides_tool and judged.verdict == "blocked" else judged.detail,
        compensation=judged.compensation,
        hides_tool=hides_tool,
    )


def _find_refusal(caller: Caller, step: UndoStep, authority: TenantAuthority) -> str | None:
    """Say why the caller may not take this back, by their token. The policies decide on each step when it is called."""
    if step.compensation is None or caller.agents:
        # An agent takes back nothing: what it plans, it can ask a person for.
        return None
    if not (caller.is_admin or caller.user == step.user):
        # An auditor sees what others did, and takes back nothing of it.
        return f"call {step.call_id} is not yours: an administrator can undo it"
    if step.hides_tool:
        return _HIDDEN_TOOL
    try:
        authority.check_token(caller, authority.tools.resolve_version(step.compensation.tool).contract)
    except Problem as problem:
        return problem.message
    return None


def _find_missing_scopes(caller: Caller, steps: Sequence[UndoStep], tools: TenantTools) -> tuple[str, ...]:
    """Find what the token of a person lacks to take back what can be, of the calls that are theirs to undo."""
    undone_by = {
        each.compensation.tool
        for each in steps
        if each.compensation is not None
        and each.verdict == "ready"
        and not each.hides_tool
        and (caller.is_admin or caller.user == each.user)
    }
    if caller.agents or not undone_by:
        return ()
    needed = {UNDO_SCOPE}.union(*(tools.resolve_version(each).contract.auth.required_scopes for each in undone_by))
    return tuple(sorted(needed - caller.scopes))


def _block_steps(
    steps: Sequence[UndoStep], blocks: Mapping[str, tuple[str, str]], refusals: Mapping[str, str]
) -> list[UndoStep]:
    """Block each step that the caller may not take, or that would overwrite a later effect: of someone else, or one of
    the plan that stays.

    `blocks` are the steps that are blocked by other calls, with the reason and its words.
    """
    judged: list[UndoStep] = []
    staying: list[UndoStep] = []
    for step in steps:
        if step.verdict == "ready":
            later = next((each for each in staying if _overlap(each, step)), None)
            if step.entry_id in blocks:
                reason, detail = blocks[step.entry_id]
                step = replace(step, verdict="blocked", reason=reason, detail=detail)
            elif later is not None:
                detail = f"call {later.call_id} changed the same later, and stays"
                step = replace(step, verdict="blocked", reason="changed_since", detail=detail)
            elif step.entry_id in refusals:
                step = replace(step, verdict="blocked", reason="not_allowed", detail=refusals[step.entry_id])
        if step.verdict == "blocked":
            staying.append(step)
        judged.append(step)
    return judged


def _overlap(a: UndoStep, b: UndoStep) -> bool:
    return any(
        resource == other_resource
        and scopes_overlap(scope, other_scope)
        and not (op == other_op == "create" and "*" in scope and "*" in other_scope)
        for resource, op, scope in a.effects
        for other_resource, other_op, other_scope in b.effects
    )


def _digest_steps(keys: KeySet, steps: Sequence[UndoStep]) -> str:
    document = {
        "steps": [
            [
                each.entry_id,
                each.verdict,
                each.reason,
                None if each.compensation is None else each.compensation.to_json(),
                None if each.sending is None else each.sending.to_json(),
            ]
            for each in steps
            if each.verdict != "done"
        ]
    }
    # With a key, so that nobody can guess arguments from it.
    return hashlib.blake2b(canonicalize(document), key=keys.records_key, digest_size=32).hexdigest()
