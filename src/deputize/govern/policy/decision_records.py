"""Record what a decision was made from, so that it can be replayed with the same policies or with a draft.

A record holds caller, tool, environment and all facts of the contract, even those the rules do not read, because a
draft may. Attributes that differ per call (session, scopes, sweeping, time, cost, labels) are recorded only if the
rules read them; `Replay.find_missing` lists what a draft would need beyond that. What a call takes back is always
recorded; a record without it is of a call that takes nothing back, or of an earlier release. Equal requests make equal
records.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import orjson

from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Effects
from deputize.core.decision import (
    ApprovalRequirement,
    Behavior,
    MatchedRule,
    RecordedVerdict,
    UndoneCall,
    Verdict,
    build_approval_requirements,
)
from deputize.core.sensitive.text import may_hold_secret, redact_secrets
from deputize.core.value_types import frozen
from deputize.govern.policy import approval_annotations
from deputize.govern.policy.cedar_schema import PolicyQuery
from deputize.govern.policy.checks.attribute_reads import AttributeReads
from deputize.govern.policy.slices import PolicySlice

RECORD_VERSION = 1
# Characters of one record that are searched for secrets, which takes up to four milliseconds.
_MAX_SEARCHED_LENGTH = 1_024
# Recorded only if the rules read them.
_OPTIONAL_ATTRIBUTES = ("session", "scopes", "sweeping", "time", "cost", "labels")


class DecisionRecorder:
    """Builds the records of one version of the policies. Ids are keyed digests: without `key` they reveal nothing."""

    def __init__(self, set_digest: str, key: bytes) -> None:
        self._set_digest = set_digest
        self._key = key

    def record_decision(
        self, query: PolicyQuery, slice_: PolicySlice, verdict: Verdict, withheld: frozenset[str] = frozenset()
    ) -> RecordedVerdict:
        if query.facts:
            withheld |= find_secret_facts(query.facts)
        redacted_facts = sorted(name for name in query.facts if name in withheld)
        record = canonicalize(
            {
                "v": RECORD_VERSION,
                "behavior": verdict.behavior.value,
                "source": verdict.source,
                "reason": verdict.reason,
                "rule_refs": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in verdict.rules],
                "policy_refs": {"set": self._set_digest, "slice": slice_.digest},
                "suggested_updates": [verdict.suggestion] if verdict.suggestion else [],
                "errors": list(verdict.errors),
                "principal": dict(query.caller),
                "tool": dict(query.tool),
                "context": {
                    "environment": query.environment,
                    "facts": {
                        name: None if name in withheld else _to_json_value(query.facts[name]) for name in query.facts
                    },
                    **_collect_optional_attributes(query, slice_.reads),
                    **_serialize_undone(query.undone),
                },
                "redacted": [f"facts.{name}" for name in redacted_facts],
                **_serialize_requirements(verdict),
                **({"sandbox": verdict.weak_sandbox} if verdict.weak_sandbox else {}),
            }
        )
        return RecordedVerdict(verdict=verdict, record_id=self.compute_id(record), record=record)

    def compute_id(self, record: bytes) -> str:
        return hashlib.blake2b(record, digest_size=16, key=self._key).hexdigest()


def find_secret_facts(facts: Mapping[str, Any]) -> frozenset[str]:
    """Find the facts whose text holds a secret by its shape, whatever the contract says.

    Callers choose how long the texts are: past a limit, one that can hold a secret counts as if it did.
    """
    secret_facts: set[str] = set()
    budget = _MAX_SEARCHED_LENGTH
    for name, value in facts.items():
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and may_hold_secret(text):
                budget -= len(text)
                if budget < 0 or redact_secrets(text) != text:
                    secret_facts.add(name)
                    break
    return frozenset(secret_facts)


@frozen
class Replay:
    """A recorded query and its verdict. `absent` names the attributes that the record does not hold."""

    query: PolicyQuery
    verdict: Verdict
    set_digest: str
    absent: frozenset[str]

    def find_missing(self, reads: AttributeReads) -> tuple[str, ...]:
        """List the attributes these rules read and the record does not hold; without them a verdict is a guess."""
        facts = {name for name in self.absent if name.startswith("facts.")}
        if "facts" not in reads.context:
            missing_facts = set()
        elif reads.facts is None:
            missing_facts = facts
        else:
            missing_facts = facts & {f"facts.{name}" for name in reads.facts}
        return tuple(sorted(missing_facts | (self.absent & set(reads.context))))


def parse_replay(record: bytes, *, now_ms: int | None = None) -> Replay:
    """Parse a record. `now_ms` is when the call was made, for records that do not hold the time."""
    body = orjson.loads(record)
    context = body["context"]
    absent = {name for name in _OPTIONAL_ATTRIBUTES if name not in context} | set(body["redacted"])
    if now_ms is not None:
        absent.discard("time")
    is_sweeping = context.get("sweeping", _infer_sweeping(body["tool"]))
    if is_sweeping is not None:
        absent.discard("sweeping")
    query = PolicyQuery(
        caller=body["principal"],
        tool=body["tool"],
        environment=context["environment"],
        session=context.get("session"),
        now_ms=context.get("time", now_ms or 0),
        facts={name: _to_hashable(value) for name, value in context["facts"].items() if value is not None},
        scopes=tuple(context.get("scopes", ())),
        is_sweeping=is_sweeping is not False,
        cost_micros=context.get("cost", 0),
        labels=frozenset(context.get("labels", ())),
        undone=_parse_undone(context.get("undoes")),
    )
    return Replay(
        query=query, verdict=_parse_verdict(body), set_digest=body["policy_refs"]["set"], absent=frozenset(absent)
    )


def _parse_verdict(body: Mapping[str, Any]) -> Verdict:
    behavior = Behavior(body["behavior"])
    rules = tuple(MatchedRule(**rule) for rule in body["rule_refs"])
    return Verdict(
        behavior=behavior,
        rules=rules,
        digest=body["policy_refs"]["slice"],
        source=body["source"],
        reason=body["reason"],
        errors=tuple(body["errors"]),
        suggestion=next(iter(body["suggested_updates"]), ""),
        requirements=_parse_requirements(body, rules) if behavior is Behavior.ASK else (),
        weak_sandbox=body.get("sandbox", ""),
    )


def _serialize_undone(undone: UndoneCall | None) -> dict[str, Any]:
    return {} if undone is None else {"undoes": {"tool": undone.tool, "agents": list(undone.agents)}}


def _parse_undone(fields: Mapping[str, Any] | None) -> UndoneCall | None:
    return None if fields is None else UndoneCall(tool=fields["tool"], agents=tuple(fields["agents"]))


def _serialize_requirements(verdict: Verdict) -> dict[str, Any]:
    """Serialize approval requirements, if there are any; `rule_refs` holds each rule's reason and place."""
    if not verdict.requirements:
        return {}
    return {"demands": approval_annotations.describe_requirements(verdict.requirements)}


def _parse_requirements(body: Mapping[str, Any], rules: Sequence[MatchedRule]) -> tuple[ApprovalRequirement, ...]:
    """Parse approval requirements; a record without any gets the default requirement for each rule."""
    if "demands" not in body:
        return build_approval_requirements(rules)
    by_id = {rule.id: rule for rule in rules}
    return tuple(
        ApprovalRequirement(
            rule=each["rule"], where=by_id[each["rule"]].where, reason=by_id[each["rule"]].reason,
            groups=tuple(each["groups"]), quorum=each["quorum"], deadline_seconds=each["deadline_seconds"],
            step_up=each["step_up"],
        )
        for each in body["demands"]
    )  # fmt: skip


def _collect_optional_attributes(query: PolicyQuery, reads: AttributeReads) -> dict[str, Any]:
    values = {
        "session": query.session,
        "scopes": list(query.scopes),
        "sweeping": query.is_sweeping,
        "time": query.now_ms,
        "cost": query.cost_micros,
        "labels": sorted(query.labels),
    }
    # Arguments fill in scopes, percent-encoded, which hides where a secret begins. Without scopes, a replay says that
    # they are missing, in place of a wrong verdict.
    plain_scopes = (*query.scopes, *map(unquote, query.scopes)) if "scopes" in reads.context else ()
    omitted_names = find_secret_facts({"scopes": plain_scopes})
    return {name: values[name] for name in _OPTIONAL_ATTRIBUTES if name in reads.context and name not in omitted_names}


def _infer_sweeping(tool: Mapping[str, Any]) -> bool | None:
    """Infer the scope where it is equal for every call: a read changes nothing; undeclared effects are unbounded."""
    if tool["effects"] == Effects.READ:
        return False
    return None if tool["changes"] else True


def _to_hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _to_json_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
