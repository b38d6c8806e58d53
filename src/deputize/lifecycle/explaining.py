"""For whoever writes policy: what is in force, whether a draft may take force, and why a call was answered as it was.

Who made a call sees the rules that answered it, as its refusal showed them. What they were told of caller and
arguments is for administrators. A call of somebody else answers like one that never was.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from deputize.core.caller import Caller
from deputize.core.clock import id_time_ms
from deputize.core.errors import CallNotFound
from deputize.govern.decide import require_admin
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.check import Findings
from deputize.govern.policy.explain import smallest_change
from deputize.govern.policy.force import TenantPolicy, default_files
from deputize.govern.policy.records import Replay, question_from
from deputize.govern.policy.rules import PolicyFile, set_digest
from deputize.govern.policy.told import spoken
from deputize.govern.policy.wants import told as told_demands
from deputize.lifecycle.authority import TenantAuthority
from deputize.lifecycle.calls import is_maker
from deputize.lifecycle.checking import checked
from deputize.lifecycle.rooms import Rooms
from deputize.store.queries import load

_SQL = load("backtest")
_CALLS = load("calls")


class Explaining:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def in_force(self, caller: Caller) -> dict[str, Any]:
        """The tenant's policies with the epoch since which they hold, and who put them."""
        authority = await self._admitted(caller)
        policy = authority.policy
        async with self._rooms.store.reading(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["policies_by_digest"], caller.tenant, policy.digest)
        return {
            "digest": policy.digest,
            "epoch": policy.versions[0].since,
            "default": policy.digest == set_digest(default_files()),
            "put_by": row["put_by"] if row else None,
            "put_at": row["put_at"].isoformat() if row else None,
            "files": [{"path": file.path, "text": file.text} for file in policy.policies.files],
            "rules": [
                {
                    "id": rule.id,
                    "where": rule.where,
                    "effect": rule.effect,
                    "asks": rule.asks,
                    "reason": rule.reason,
                    "wants": rule.wants.to_json() if rule.asks else None,
                }
                for rule in policy.policies.rules
            ],
        }

    async def check(self, caller: Caller, files: Sequence[PolicyFile]) -> Findings:
        """What keeps these files from taking force here, and what their author should know."""
        authority = await self._admitted(caller)
        return await checked(authority, files)

    async def decision(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Why a call was answered as it was; its maker sees less of it than an administrator."""
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        entries = await self._entries(caller, call_id)
        deciding = next((each for each in reversed(entries) if "decision" in each), entries[-1])
        told = {
            "call_id": call_id,
            "tool": {"name": deciding.get("tool"), "version": deciding.get("version")},
            "decided_at": deciding["time"],
            "state": entries[-1].get("outcome"),
            "error_number": entries[-1].get("error"),
        }
        record = await self._record(caller.tenant, deciding.get("decision"))
        if record is None:
            rules = [{"id": each, "where": "", "reason": ""} for each in deciding.get("rules", ())]
            return {**told, "decided_by": "token", "rules": rules}
        replay = question_from(record, now_ms=id_time_ms(deciding["id"]))
        usual = self._rooms.settings.approvals.groups
        told |= {
            "decided_by": "policy", **_verdict(replay), "demands": told_demands(replay.verdict.demands, usual),
            "in_force": replay.set_digest == authority.policy.digest,
        }  # fmt: skip
        if caller.is_admin:
            told |= await self._facts(caller.tenant, authority.policy, replay, record)
        return told

    async def _admitted(self, caller: Caller) -> TenantAuthority:
        require_admin(caller)
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        return authority

    async def _entries(self, caller: Caller, call_id: str) -> list[dict[str, Any]]:
        try:
            wanted = str(UUID(call_id))
        except ValueError:
            raise _unknown(call_id) from None
        async with self._rooms.store.reading(caller.tenant) as connection:
            rows = await connection.fetch(_CALLS["entries_of_call"], caller.tenant, wanted)
        entries = [orjson.loads(row["entry"]) for row in rows]
        # Who asked a call to stop did not make it.
        made = [each for each in entries if each["kind"] != "command"]
        if not made or not (caller.is_admin or any(is_maker(caller, each["caller"]) for each in made)):
            raise _unknown(call_id)
        return made

    async def _record(self, tenant: str, record_id: str | None) -> bytes | None:
        if record_id is None:
            return None
        async with self._rooms.store.reading(tenant) as connection:
            rows = await connection.fetch(_SQL["decision_records"], tenant, [record_id])
        return rows[0]["record"] if rows else None

    async def _facts(self, tenant: str, policy: TenantPolicy, replay: Replay, record: bytes) -> dict[str, Any]:
        body = orjson.loads(record)
        then = await self._policies_then(tenant, policy, replay.set_digest)
        return {
            "rules": spoken(then, replay.verdict, replay.asked, frozenset(body["redacted"])),
            "principal": body["principal"],
            "tool_then": body["tool"],
            "context": body["context"],
            "redacted": body["redacted"],
            "errors": body["errors"],
            "confirmed": None if then is None else _confirmed(then, replay),
            "now": await asyncio.to_thread(_again, policy.policies, replay),
        }

    async def _policies_then(self, tenant: str, policy: TenantPolicy, digest: str) -> CompiledPolicies | None:
        """The policies a record was made by; gone only where a release changed its default set since."""
        held = next((version for version in policy.versions if version.digest == digest), None)
        if held is not None:
            return held.decisions.policies
        async with self._rooms.store.reading(tenant) as connection:
            row = await connection.fetchrow(_SQL["policies_by_digest"], tenant, digest)
        if row is None:
            return None
        files = tuple(PolicyFile(**file) for file in orjson.loads(row["files"])) or default_files()
        if set_digest(files) != digest:
            return None
        return await asyncio.to_thread(CompiledPolicies, files, orjson.loads(row["facts"]))


def _verdict(replay: Replay) -> dict[str, Any]:
    verdict = replay.verdict
    return {
        "behavior": verdict.behavior,
        "source": verdict.source,
        "reason": verdict.reason,
        "rules": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in verdict.rules],
        "suggestion": verdict.suggestion,
        "policy_digest": replay.set_digest,
    }


def _confirmed(then: CompiledPolicies, replay: Replay) -> bool | None:
    """Whether the policies of then say the same to it again; None where others had a say, or facts are gone."""
    asked, verdict = replay.asked, replay.verdict
    if verdict.source != "cedar" or replay.lacks(then.slice_for(asked).reads):
        return None
    return then.replay(asked).behavior is verdict.behavior


def _again(policies: CompiledPolicies, replay: Replay) -> dict[str, Any]:
    """What the policies in force would say to the same question, and what would make them allow it."""
    lacks = replay.lacks(policies.slice_for(replay.asked).reads)
    if lacks:
        return {"behavior": None, "rules": [], "lacks": list(lacks), "allowed_if": []}
    verdict = policies.replay(replay.asked)
    return {
        "behavior": verdict.behavior,
        "rules": spoken(policies, verdict, replay.asked),
        "lacks": [],
        "allowed_if": smallest_change(policies, replay.asked),
    }


def _unknown(call_id: str) -> CallNotFound:
    return CallNotFound("there is no such call, or it is not yours", details={"call_id": call_id[:64]})
