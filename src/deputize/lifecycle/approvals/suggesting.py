"""Drafts of permits, from what people decided: read as one tenant, page by page, and tried on recorded calls.

For administrators. Nothing is put in force: what comes out is a file that a person may read, change and put, or not.
Below: `govern/approvals/suggest.py`, which learns, and `lifecycle/backtest.py`, which tries.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson

from deputize.catalog.exposed import exposed
from deputize.catalog.schemas import follow
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.clock import id_time_ms
from deputize.core.contract import Contract
from deputize.govern.approvals.suggest import Past, Suggested, Tool, is_evidence, suggest
from deputize.govern.decide import require_admin
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.records import Replay, question_from
from deputize.govern.policy.rules import PolicyFile
from deputize.lifecycle.backtest import Backtests, first_id
from deputize.lifecycle.rooms import Rooms
from deputize.store.queries import load

PAGE = 500
# The newest of them: what people decided last is what they think.
MOST_TICKETS = 20_000
USUAL = timedelta(days=30)
_SQL = load("suggestions")
_RECORDS = load("backtest")
_BY_HOOKS = "hook:"
_APPROVED = frozenset({"approved", "used"})
_DECIDED = _APPROVED | {"denied"}


class Suggestions:
    def __init__(self, rooms: Rooms, backtests: Backtests) -> None:
        self._rooms = rooms
        self._backtests = backtests

    async def draft(self, caller: Caller, *, since: datetime | None = None, lasts: timedelta = USUAL) -> dict[str, Any]:
        """Permits for what people approved again and again since then, each ending within `lasts`."""
        require_admin(caller)
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        now = self._rooms.clock.now()
        start = since or now - USUAL
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        # At midnight in UTC, so that whoever asks twice on a day gets the same draft.
        end = (now + lasts).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        policies, until = authority.policy.policies, int(end.timestamp())
        past, tickets = await self._past(caller.tenant, policies, int(start.timestamp() * 1000))
        found = await asyncio.to_thread(
            suggest, past, policies, _Known(authority.tools), now_ms=self._rooms.clock.epoch_ms(), until=until
        )
        return {
            "since": start.isoformat(),
            "tickets": tickets,
            "suggestions": [each.to_json() for each in found.drafts],
            "withheld": [each.to_json() for each in found.withheld],
            "file": None if found.file is None else {"path": found.file.path, "text": found.file.text},
            "backtest": await self._tried(caller, policies, found, start),
        }

    async def _tried(
        self, caller: Caller, policies: CompiledPolicies, found: Suggested, since: datetime
    ) -> dict[str, Any] | None:
        """What the drafts would have changed, beside all that is in force: checked as strictly as to take force."""
        if found.file is None:
            return None
        files: Sequence[PolicyFile] = [*policies.files, found.file]
        result: dict[str, Any] = {}
        async for line in await self._backtests.begin(caller, files, since):
            result = line.get("result", result)
        return result

    async def _past(self, tenant: str, policies: CompiledPolicies, since_ms: int) -> tuple[list[Past], int]:
        past: list[Past] = []
        before, tickets = first_id(self._rooms.clock.epoch_ms() + 60_000), 0
        while tickets < MOST_TICKETS:
            async with self._rooms.store.reading(tenant) as connection:
                rows = await connection.fetch(_SQL["decided_tickets"], tenant, first_id(since_ms), before, PAGE)
                decided = [row for row in rows if row["state"] in _DECIDED and not row["glass"]]
                entries = await connection.fetch(_SQL["entries_of_calls"], tenant, [row["call_id"] for row in decided])
                named = _named(entries)
                ids = sorted({each for several in named.values() for each in several})
                kept = await connection.fetch(_RECORDS["decision_records"], tenant, ids)
            records = {row["id"]: row["record"] for row in kept}
            past += await asyncio.to_thread(_read, decided, named, records, policies)
            tickets += len(rows)
            if len(rows) < PAGE:
                break
            before = str(rows[-1]["id"])
        return past, tickets


class _Known:
    """What the learning has to know of a tool in one of its versions; None where it cannot be called."""

    def __init__(self, tools: TenantTools) -> None:
        self._tools = tools

    def __call__(self, name: str, version: str) -> Tool | None:
        found = self._tools.find(name)
        kept = found.by_version.get(version) if found is not None and version in found.callable_versions else None
        if kept is None:
            return None
        contract = kept.contract
        facts = {fact.name: fact.type for fact in exposed(contract)}
        return Tool(digest=kept.digest, facts=facts, unseen=unseen(contract))


def unseen(contract: Contract) -> tuple[str, ...]:
    """The arguments that no rule can read and no record holds: a permit could not be held to any value of them."""
    told = {fact.argument for fact in exposed(contract) if not fact.sensitive}
    schema = follow(contract.input_schema, contract.input_schema)
    names = tuple(name for name in schema.get("properties", {}) if name not in told)
    closed = schema.get("additionalProperties", schema.get("unevaluatedProperties")) is False
    return names if closed else (*names, "arguments of any other name")


def _named(entries: Sequence[asyncpg.Record]) -> dict[Any, list[str]]:
    """The records each call was decided from, the first first."""
    named: dict[Any, dict[str, None]] = {}
    for row in entries:
        record = orjson.loads(row["entry"]).get("decision")
        if record is not None:
            named.setdefault(row["call_id"], {})[record] = None
    return {call: list(ids) for call, ids in named.items()}


def _read(
    rows: Sequence[asyncpg.Record],
    named: Mapping[Any, Sequence[str]],
    records: Mapping[str, bytes],
    policies: CompiledPolicies,
) -> list[Past]:
    found: list[Past] = []
    for row in rows:
        at_ms = id_time_ms(str(row["id"]))
        rules = frozenset(each["rule"] for each in orjson.loads(row["demands"]))
        replay = _asked(rules, [records[each] for each in named.get(row["call_id"], ()) if each in records], at_ms)
        if replay is not None and is_evidence(replay, policies):
            found.append(
                Past(
                    ticket=str(row["id"]),
                    approved=row["state"] in _APPROVED,
                    people=frozenset(row["people"]),
                    at_ms=at_ms,
                    rules=rules,
                    replay=replay,
                )
            )
    return found


def _asked(rules: frozenset[str], records: Sequence[bytes], at_ms: int) -> Replay | None:
    """The question the ticket was about: what the rules decided from that asked, hooks apart, which leave no record."""
    for record in records:
        replay = question_from(record, now_ms=at_ms)
        asking = {demand.rule for demand in replay.verdict.demands}
        if asking <= rules and all(name.startswith(_BY_HOOKS) for name in rules - asking):
            return replay
    return None
