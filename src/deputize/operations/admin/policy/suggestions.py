"""Draft permits from what people approved: read one tenant, page by page, and backtest the drafts on recorded calls.

For administrators. Nothing becomes active: the result is a file that a person can read, change and put.
`govern/approvals/permit_suggestions.py` derives the permits, and `backtests.py` tries them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson

from deputize.catalog.policy_facts import list_facts
from deputize.catalog.schemas import resolve_refs
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.clock import make_first_id, parse_id_time_ms
from deputize.core.contract.contract import Contract
from deputize.govern.approvals.permit_suggestions import (
    PastDecision,
    SuggestionResult,
    ToolFacts,
    is_evidence,
    suggest_permits,
)
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.decision_records import Replay, parse_replay
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.govern.token_authorization import require_admin
from deputize.lifecycle.runtime import Runtime
from deputize.operations.admin.policy.backtests import Backtests
from deputize.store.queries import load_statements

PAGE_SIZE = 500
# The newest ones, since they show best what people decide today.
MAX_APPROVAL_REQUESTS = 20_000
DEFAULT_PERIOD = timedelta(days=30)
_SQL = load_statements("suggestions")
_BACKTEST_SQL = load_statements("backtest")
_HOOK_PREFIX = "hook:"
_APPROVED_STATES = frozenset({"approved", "used"})
_DECIDED_STATES = _APPROVED_STATES | {"denied"}


class PermitSuggestions:
    def __init__(self, runtime: Runtime, backtests: Backtests) -> None:
        self._runtime = runtime
        self._backtests = backtests

    async def draft_permits(
        self, caller: Caller, *, since: datetime | None = None, lifetime: timedelta = DEFAULT_PERIOD
    ) -> dict[str, Any]:
        """Draft permits for what people approved again and again since then, each expiring within `lifetime`."""
        require_admin(caller)
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        now = self._runtime.clock.now()
        start = since or now - DEFAULT_PERIOD
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        # At midnight UTC, so that two requests on the same day get the same draft.
        end = (now + lifetime).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        policies, until = authority.policy.policies, int(end.timestamp())
        past_decisions, request_count = await self._load_past_decisions(
            caller.tenant, policies, int(start.timestamp() * 1000)
        )
        suggestions = await asyncio.to_thread(
            suggest_permits,
            past_decisions,
            policies,
            _ToolLookup(authority.tools),
            now_ms=self._runtime.clock.epoch_ms(),
            until=until,
        )
        return {
            "since": start.isoformat(),
            "request_count": request_count,
            "suggestions": [each.to_json() for each in suggestions.drafts],
            "withheld": [each.to_json() for each in suggestions.withheld],
            "file": None
            if suggestions.file is None
            else {"path": suggestions.file.path, "text": suggestions.file.text},
            "backtest": await self._backtest_drafts(caller, policies, suggestions, start),
        }

    async def _backtest_drafts(
        self, caller: Caller, policies: CompiledPolicies, suggestions: SuggestionResult, since: datetime
    ) -> dict[str, Any] | None:
        """Backtest the drafts together with the active policies, checked as strictly as for activation."""
        if suggestions.file is None:
            return None
        files: Sequence[PolicyFile] = [*policies.files, suggestions.file]
        result: dict[str, Any] = {}
        async for line in await self._backtests.start_backtest(caller, files, since):
            result = line.get("result", result)
        return result

    async def _load_past_decisions(
        self, tenant: str, policies: CompiledPolicies, since_ms: int
    ) -> tuple[list[PastDecision], int]:
        past_decisions: list[PastDecision] = []
        before, request_count = make_first_id(self._runtime.clock.epoch_ms() + 60_000), 0
        while request_count < MAX_APPROVAL_REQUESTS:
            async with self._runtime.store.read_transaction(tenant) as connection:
                rows = await connection.fetch(
                    _SQL["list_decided_approval_requests"], tenant, make_first_id(since_ms), before, PAGE_SIZE
                )
                decided_rows = [row for row in rows if row["state"] in _DECIDED_STATES and not row["break_glass"]]
                entries = await connection.fetch(
                    _SQL["list_entries_of_calls"], tenant, [row["call_id"] for row in decided_rows]
                )
                record_ids = _group_record_ids(entries)
                ids = sorted({each for ids_of_call in record_ids.values() for each in ids_of_call})
                record_rows = await connection.fetch(_BACKTEST_SQL["load_decision_records"], tenant, ids)
            records = {row["id"]: row["record"] for row in record_rows}
            past_decisions += await asyncio.to_thread(_read_past_decisions, decided_rows, record_ids, records, policies)
            request_count += len(rows)
            if len(rows) < PAGE_SIZE:
                break
            before = str(rows[-1]["id"])
        return past_decisions, request_count


class _ToolLookup:
    """Finds the facts of a tool version that drafting needs; None if it cannot be called."""

    def __init__(self, tools: TenantTools) -> None:
        self._tools = tools

    def __call__(self, name: str, version: str) -> ToolFacts | None:
        tool_entry = self._tools.find_entry(name)
        tool_version = (
            tool_entry.by_version.get(version)
            if tool_entry is not None and version in tool_entry.callable_versions
            else None
        )
        if tool_version is None:
            return None
        contract = tool_version.contract
        facts = {fact.name: fact.type for fact in list_facts(contract)}
        return ToolFacts(digest=tool_version.digest, facts=facts, hidden_arguments=list_unreadable_arguments(contract))


def list_unreadable_arguments(contract: Contract) -> tuple[str, ...]:
    """List the arguments that no rule can read and no record holds: a permit could not restrict their values."""
    readable = {fact.argument for fact in list_facts(contract) if not fact.is_sensitive and fact.member is None}
    schema = resolve_refs(contract.input_schema, contract.input_schema)
    names = tuple(name for name in schema.get("properties", {}) if name not in readable)
    is_closed = schema.get("additionalProperties", schema.get("unevaluatedProperties")) is False
    return names if is_closed else (*names, "arguments of any other name")


def _group_record_ids(entries: Sequence[asyncpg.Record]) -> dict[Any, list[str]]:
    """Group the ids of the decision records by call, oldest first."""
    ids_by_call: dict[Any, dict[str, None]] = {}
    for row in entries:
        record = orjson.loads(row["entry"]).get("decision")
        if record is not None:
            ids_by_call.setdefault(row["call_id"], {})[record] = None
    return {call: list(ids) for call, ids in ids_by_call.items()}


def _read_past_decisions(
    rows: Sequence[asyncpg.Record],
    record_ids: Mapping[Any, Sequence[str]],
    records: Mapping[str, bytes],
    policies: CompiledPolicies,
) -> list[PastDecision]:
    past_decisions: list[PastDecision] = []
    for row in rows:
        at_ms = parse_id_time_ms(str(row["id"]))
        rules = frozenset(each["rule"] for each in orjson.loads(row["demands"]))
        replay = _find_replay(
            rules, [records[each] for each in record_ids.get(row["call_id"], ()) if each in records], at_ms
        )
        if replay is not None and is_evidence(replay, policies):
            past_decisions.append(
                PastDecision(
                    approval_id=str(row["id"]),
                    is_approved=row["state"] in _APPROVED_STATES,
                    people=frozenset(row["people"]),
                    at_ms=at_ms,
                    rules=rules,
                    replay=replay,
                )
            )
    return past_decisions


def _find_replay(rules: frozenset[str], records: Sequence[bytes], at_ms: int) -> Replay | None:
    """Find the query that the approval request was about: its rules required approval (hooks leave no record)."""
    for record in records:
        replay = parse_replay(record, now_ms=at_ms)
        replay_rules = {demand.rule for demand in replay.verdict.requirements}
        if replay_rules <= rules and all(name.startswith(_HOOK_PREFIX) for name in rules - replay_rules):
            return replay
    return None
