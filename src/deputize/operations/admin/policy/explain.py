"""Explain policies to their authors: the active ones, the errors of a draft, and why a call was decided as it was.

The caller who made a call sees the rules that decided it, as its refusal showed them, and so do auditors. The evaluated
facts about caller and arguments are for administrators. Another caller's call looks like one that does not exist.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson
from pydantic import ValidationError

from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller
from deputize.core.clock import make_first_id, parse_id_time_ms
from deputize.core.errors import CallNotFound, MalformedRequest, ScopeMissing, Unavailable
from deputize.govern.kill_switches import SwitchKind, TenantKillSwitches
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.govern.policy import policy_proposals
from deputize.govern.policy.active_policies import TenantPolicy, compute_digest_off_loop, load_default_files
from deputize.govern.policy.approval_annotations import describe_requirements as describe_requirements
from deputize.govern.policy.attribute_values import describe_rules
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.checks.policy_cases import CaseInput
from deputize.govern.policy.checks.replays import confirm_replay, replay_query
from deputize.govern.policy.decision_records import Replay, parse_replay
from deputize.govern.policy.policy_parser import PolicyFile, compute_set_digest
from deputize.govern.token_authorization import (
    SCOPES_RULE,
    is_tool_visible,
    require_admin,
    require_admin_scope,
    require_auditor,
)
from deputize.lifecycle.call_access import may_reach, may_read_entry
from deputize.lifecycle.recording.call_history import CallHistory, load_call_history
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.operations.admin.policy.check_draft import check_policies
from deputize.operations.admin.policy.rehearsal import rehearse_job
from deputize.store.queries import load_statements

_SQL = load_statements("backtest")
_AUDIT = load_statements("audit_search")
_MAX_REPLAY_SECONDS = 10
# A page waits for this: 5,000 entries take about 50 ms, and are kept, so that the next look reads only what is new.
_USAGE_MS: Final = 86_400_000
_USAGE_OVERLAP_MS: Final = 5_000
_MAX_USAGE_ENTRIES: Final = 5000
_MAX_USAGE_TENANTS: Final = 8
# Each reads and parses that many entries.
_MAX_USAGE_COUNTS: Final = 2
_RULED_KINDS: Final = frozenset({"read", "refusal", "intent", "outcome"})


class PolicyExplanations:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._usage_slots = TenantSlots("counts of used rules", _MAX_USAGE_COUNTS)
        self._recent_rules: dict[str, RecentRules] = {}

    async def show_active_policies(self, caller: Caller) -> dict[str, Any]:
        """Show the tenant's active policies, since which epoch they are active, and who put them."""
        require_auditor(caller)
        authority = await self._load_authority(caller)
        policy = authority.policy
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["load_policies_by_digest"], caller.tenant, policy.digest)
            proposals = await policy_proposals.list_proposals(connection, caller.tenant)
        return {
            "digest": policy.digest,
            "epoch": policy.versions[0].since,
            "default": policy.digest == compute_set_digest(load_default_files()),
            "put_by": row["put_by"] if row else None,
            "put_at": row["put_at"].isoformat() if row else None,
            "proposals": [each.to_json() for each in proposals],
            "files": [{"path": file.path, "text": file.text} for file in policy.policies.files],
            "rules": [
                {
                    "id": rule.id,
                    "where": rule.where,
                    "effect": rule.effect,
                    "requires_approval": rule.requires_approval,
                    "reason": rule.reason,
                    "approval_terms": rule.approval_terms.to_json() if rule.requires_approval else None,
                }
                for rule in policy.policies.rules
            ],
        }

    async def report_usage(self, caller: Caller) -> dict[str, Any]:
        """Report how many calls each active rule decided in the last day, or in the newest entries of a busier one."""
        require_auditor(caller)
        with self._usage_slots.take(caller):
            rules = (await self._load_authority(caller)).policy.policies.rules
            recent = await self._load_recent_rules(caller.tenant)
            first = make_first_id(self._runtime.clock.epoch_ms() - _USAGE_MS)
            counts, calls = await asyncio.to_thread(recent.count_calls, first)
        since_ms = parse_id_time_ms(max(first, recent.first))
        return {
            "since": datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds"),
            "is_complete": recent.first <= first,
            "calls": calls,
            "rules": [{"id": each.id, "calls": counts[each.id]} for each in rules],
        }

    async def _load_recent_rules(self, tenant: str) -> "RecentRules":
        """Read what was recorded since the last look, or all of the period at the first one."""
        now_ms = self._runtime.clock.epoch_ms()
        known = self._recent_rules.pop(tenant, None)
        first = make_first_id(now_ms - _USAGE_MS) if known is None else known.next_look
        async with self._runtime.store.read_transaction(tenant) as connection:
            rows = await connection.fetch(
                _AUDIT["list_entries_before"], tenant, first, make_first_id(now_ms + 1), _MAX_USAGE_ENTRIES
            )
        entries = await asyncio.to_thread(_parse_rules, rows)
        if len(rows) == _MAX_USAGE_ENTRIES:
            first, known = str(rows[-1]["id"]), None
        recent = RecentRules(entries, first) if known is None else known.add(entries)
        self._recent_rules[tenant] = recent
        while len(self._recent_rules) > _MAX_USAGE_TENANTS:
            del self._recent_rules[next(iter(self._recent_rules))]
        return recent

    async def check_draft(self, caller: Caller, files: Sequence[PolicyFile]) -> dict[str, Any]:
        """Check a draft against the tenant's tools: its digest, its errors and its warnings. Changes nothing.

        A rule about what does not exist is an error here, and a warning when the policies become active.
        """
        require_admin(caller)
        authority = await self._load_authority(caller)
        findings = await check_policies(self._runtime, authority, files)
        shown = await asyncio.to_thread(lambda: findings.for_author().to_json())
        return {
            "digest": await compute_digest_off_loop(files),
            "errors": shown["errors"],
            "warnings": shown["warnings"],
        }

    async def explain_case(self, caller: Caller, case: Mapping[str, Any]) -> dict[str, Any]:
        """Decide a hypothetical call by the active policies, and say what would allow it. Changes nothing.

        Whether a token would be enough is not asked, and no other engine is consulted.
        """
        require_admin_scope(caller)
        authority = await self._load_authority(caller)
        checked_case = _check_case(case)
        contract = authority.tools.get_entry(str(checked_case["tool"]), visible=partial(is_tool_visible, caller)).name
        version = await authority.tools.resolve_version(contract).load_tool()
        policies = authority.policy.policies
        request = {
            "files": [[file.path, file.text] for file in policies.files],
            "facts": policies.facts,
            "contract": version.contract.model_dump(mode="json"),
            "placement": self._runtime.driver.find_placement(version.contract, caller.tenant),
            "tenant": caller.tenant,
            "approvers": list(self._runtime.settings.approvals.groups),
            "case": {
                "environment": self._runtime.settings.environment,
                "time": self._runtime.clock.now().isoformat(),
                **checked_case,
                "tool": contract,
            },
        }
        run_job = partial(self._runtime.admin_jobs.run_job, caller.tenant, seconds=_MAX_REPLAY_SECONDS)
        reply = await run_job(rehearse_job, orjson.dumps(request))
        if reply is None:
            raise Unavailable("the rules for this tool take too long to evaluate, or too much is evaluated now")
        decision: dict[str, Any] = orjson.loads(reply)
        if "invalid" in decision:
            raise MalformedRequest(decision["invalid"])
        return decision

    async def explain_decision(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Explain why a call was decided as it was; its maker sees less than an administrator."""
        try:
            call_uuid = str(UUID(call_id))
        except ValueError:
            raise _build_not_found(call_id) from None
        return await self.explain_history(caller, await load_call_history(self._runtime, caller.tenant, call_uuid))

    async def explain_history(
        self, caller: Caller, history: CallHistory, *, names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Explain why a call was decided as it was, from what is stored of it. With the names of its user and agents,
        also by whom a kill switch was turned off, and why.
        """
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        call_id, entries = history.call_id, await self._list_entries(caller, history)
        decision_entry = next((each for each in reversed(entries) if "decision" in each), entries[-1])
        explanation = {
            "call_id": call_id,
            "tool": {"name": decision_entry.get("tool"), "version": decision_entry.get("version")},
            "decided_at": decision_entry["time"],
            "state": entries[-1].get("outcome"),
            "error_number": entries[-1].get("error"),
        }
        record = await self._load_record(caller.tenant, decision_entry.get("decision"))
        if record is None:
            switch_targets: tuple[tuple[SwitchKind, Sequence[str]], ...] = (
                ("tenant", [caller.tenant]), ("tool", [decision_entry.get("tool", "")]), ("agent", names),
            )  # fmt: skip
            reasons = {
                SCOPES_RULE: _describe_missing_scope(authority.tools, entries[-1]),
                **{
                    f"switch:{kind}": _describe_switch(authority.switches, kind, values, decision_entry["time"])
                    for kind, values in switch_targets
                },
            }
            rules = [
                {"id": each, "where": "", "reason": reasons.get(each, "")} for each in decision_entry.get("rules", ())
            ]
            return {**explanation, "decided_by": "token", "rules": rules}
        now_ms = parse_id_time_ms(decision_entry["id"])
        replay = parse_replay(record, now_ms=now_ms)
        default_groups = self._runtime.settings.approvals.groups
        explanation |= {
            "decided_by": "policy",
            **_describe_verdict(replay),
            "demands": describe_requirements(replay.verdict.requirements, default_groups),
            "is_active": replay.set_digest == authority.policy.digest,
        }
        if caller.is_admin:
            explanation |= await self._explain_facts(caller.tenant, authority.policy, replay, record, now_ms)
        return explanation

    async def _load_authority(self, caller: Caller) -> TenantAuthority:
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        return authority

    async def _list_entries(self, caller: Caller, history: CallHistory) -> list[dict[str, Any]]:
        """List the entries that the call itself left, if the caller may see it."""
        # A caller who requested cancellation did not make the call.
        entries = [each for each in history.entries if each["kind"] != "command"]
        is_reachable = history.row is None or await may_reach(self._runtime, caller, history.row, for_auditor=True)
        may_read = [await may_read_entry(self._runtime, caller, each, for_auditor=True) for each in entries]
        if not is_reachable or not any(may_read):
            raise _build_not_found(history.call_id)
        return entries

    async def _load_record(self, tenant: str, record_id: str | None) -> bytes | None:
        if record_id is None:
            return None
        async with self._runtime.store.read_transaction(tenant) as connection:
            rows = await connection.fetch(_SQL["load_decision_records"], tenant, [record_id])
        return rows[0]["record"] if rows else None

    async def _explain_facts(
        self, tenant: str, policy: TenantPolicy, replay: Replay, record: bytes, now_ms: int
    ) -> dict[str, Any]:
        body = orjson.loads(record)
        run_job = partial(self._runtime.admin_jobs.run_job, tenant, seconds=_MAX_REPLAY_SECONDS)
        past_policies = await self._load_past_policies(tenant, policy, replay.set_digest)
        return {
            "rules": describe_rules(past_policies, replay.verdict, replay.query, frozenset(body["redacted"])),
            "principal": body["principal"],
            "tool_then": body["tool"],
            "context": body["context"],
            "redacted": body["redacted"],
            "errors": body["errors"],
            "confirmed": (
                None if past_policies is None else await confirm_replay(past_policies, record, now_ms, run_job)
            ),
            "now": await replay_query(policy.policies, record, now_ms, run_job),
        }

    async def _load_past_policies(self, tenant: str, policy: TenantPolicy, digest: str) -> CompiledPolicies | None:
        """Load the policies that a record was decided by; None if a release changed its default policies since."""
        past_version = next((version for version in policy.versions if version.digest == digest), None)
        if past_version is not None:
            return past_version.decisions.policies
        async with self._runtime.store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(_SQL["load_policies_by_digest"], tenant, digest)
        if row is None:
            return None
        files = tuple(PolicyFile(**file) for file in orjson.loads(row["files"])) or load_default_files()
        if await compute_digest_off_loop(files) != digest:
            return None
        return await asyncio.to_thread(CompiledPolicies, files, orjson.loads(row["facts"]))


class RecentRules:
    """The rules of the newest entries, newest first: all since `first`. Each entry of a call repeats its rules."""

    def __init__(self, entries: dict[str, tuple[str, Sequence[str]]], first: str) -> None:
        self._entries = entries
        self.first = first
        self._all_counted: tuple[Counter[str], int] | None = None

    @property
    def next_look(self) -> str:
        """From where on to read again: entries are committed a moment after their ids are made."""
        newest = next(iter(self._entries), self.first)
        return max(self.first, make_first_id(parse_id_time_ms(newest) - _USAGE_OVERLAP_MS))

    def add(self, entries: Mapping[str, tuple[str, Sequence[str]]]) -> "RecentRules":
        if entries.keys() <= self._entries.keys():
            return self
        newest = sorted({**self._entries, **entries}.items(), reverse=True)
        first = self.first if len(newest) <= _MAX_USAGE_ENTRIES else newest[_MAX_USAGE_ENTRIES - 1][0]
        return RecentRules(dict(newest[:_MAX_USAGE_ENTRIES]), first)

    def count_calls(self, since: str) -> tuple[Counter[str], int]:
        """Count the calls that each rule decided since an id, and all calls."""
        if next(reversed(self._entries), since) < since:
            return _count_calls(rules for entry_id, rules in self._entries.items() if entry_id >= since)
        if self._all_counted is None:
            self._all_counted = _count_calls(self._entries.values())
        return self._all_counted


def _count_calls(entries: Iterable[tuple[str, Sequence[str]]]) -> tuple[Counter[str], int]:
    rules_by_call: dict[str, set[str]] = {}
    for call, rules in entries:
        rules_by_call.setdefault(call, set()).update(rules)
    return Counter(rule for rules in rules_by_call.values() for rule in rules), len(rules_by_call)


def _parse_rules(rows: Sequence[asyncpg.Record]) -> dict[str, tuple[str, Sequence[str]]]:
    """Parse the calls and rules of entries that have them."""
    entries = ((str(row["id"]), orjson.loads(row["entry"])) for row in rows)
    return {
        entry_id: (entry["call"], entry.get("rules", ()))
        for entry_id, entry in entries
        if entry["kind"] in _RULED_KINDS and "call" in entry
    }


def _check_case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Check the form of a hypothetical call, which is that of a policy test."""
    try:
        return CaseInput.model_validate(case).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise MalformedRequest(f"{field}: {first['msg']}", details={"field": field}) from None


def _describe_switch(switches: TenantKillSwitches, kind: SwitchKind, values: Sequence[str], time: str) -> str:
    """Say who had turned off one of these at a time, and why, as far as this process still knows the switch."""
    at = datetime.fromisoformat(time)
    earlier = [
        each
        for value in values
        for each in switches.switches.get((kind, value), ())
        if datetime.fromisoformat(each.since) <= at
    ]
    if not earlier:
        return ""
    switch = max(earlier, key=lambda each: each.off_epoch)
    return f"{switch.by} turned off the {kind} {switch.value}" + (f": {switch.reason}" if switch.reason else "")


def _describe_missing_scope(tools: TenantTools, entry: Mapping[str, Any]) -> str:
    """Say which scopes a call needed that was refused for the lack of one; nothing of any other call."""
    if entry.get("error") != ScopeMissing.spec.e_number:
        return ""
    tool = tools.find_entry(str(entry.get("tool")))
    version = None if tool is None else tool.by_version.get(str(entry.get("version")))
    scopes = () if version is None else version.contract.auth.required_scopes
    return f"the token lacked a scope of those that it needs: {', '.join(scopes)}" if scopes else ""


def _describe_verdict(replay: Replay) -> dict[str, Any]:
    verdict = replay.verdict
    return {
        "behavior": verdict.behavior,
        "source": verdict.source,
        "reason": verdict.reason,
        "rules": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in verdict.rules],
        "suggestion": verdict.suggestion,
        "policy_digest": replay.set_digest,
    }


def _build_not_found(call_id: str) -> CallNotFound:
    return CallNotFound("no call has this id, or it is not yours", details={"call_id": call_id[:64]})
