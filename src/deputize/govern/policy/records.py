"""What a decision was made from, written down so that it can be made again: against the same rules or against a draft.

A record holds everything about caller, tool and environment, and the facts the contract exposes, whether or not the
rules read them, because a draft may. What only some calls have (session, scopes, sweeping, time, cost, labels) stands
in it when the rules read it; `lacks` says what a draft would need beyond that. Equal questions make equal records.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from deputize.core.canonical import canonical
from deputize.core.contract import Effects
from deputize.core.decision import Behavior, Decided, Demand, Rule, Verdict, demanded
from deputize.core.frozen import frozen
from deputize.govern.policy import wants
from deputize.govern.policy.reads import Reads
from deputize.govern.policy.slices import Slice
from deputize.govern.policy.world import Asked

VERSION = 1
# In a record only when the rules read it.
_WHEN_READ = ("session", "scopes", "sweeping", "time", "cost", "labels")


class Records:
    """Writes the records of one set of policies; `key` makes their ids say nothing to who lacks it."""

    def __init__(self, set_digest: str, key: bytes) -> None:
        self._set_digest = set_digest
        self._key = key

    def made(self, asked: Asked, slice_: Slice, verdict: Verdict, withheld: frozenset[str] = frozenset()) -> Decided:
        redacted = sorted(name for name in asked.facts if name in withheld)
        record = canonical(
            {
                "v": VERSION,
                "behavior": verdict.behavior.value,
                "source": verdict.source,
                "reason": verdict.reason,
                "rule_refs": [{"id": rule.id, "where": rule.where, "reason": rule.reason} for rule in verdict.rules],
                "policy_refs": {"set": self._set_digest, "slice": slice_.digest},
                "suggested_updates": [verdict.suggestion] if verdict.suggestion else [],
                "errors": list(verdict.errors),
                "principal": dict(asked.caller),
                "tool": dict(asked.tool),
                "context": {
                    "environment": asked.environment,
                    "facts": {name: None if name in withheld else _plain(asked.facts[name]) for name in asked.facts},
                    **_what_was_read(asked, slice_.reads),
                },
                "redacted": [f"facts.{name}" for name in redacted],
                **_demands(verdict),
            }
        )
        return Decided(verdict=verdict, record_id=self.id_of(record), record=record)

    def id_of(self, record: bytes) -> str:
        return hashlib.blake2b(record, digest_size=16, key=self._key).hexdigest()


@frozen
class Replay:
    """A recorded question and what was answered. `absent` names what the record does not hold."""

    asked: Asked
    verdict: Verdict
    set_digest: str
    absent: frozenset[str]

    def lacks(self, reads: Reads) -> tuple[str, ...]:
        """What these rules would read and the record cannot tell; answers that need it are guesses."""
        facts = {name for name in self.absent if name.startswith("facts.")}
        if "facts" not in reads.context:
            wanted = set()
        elif reads.facts is None:
            wanted = facts
        else:
            wanted = facts & {f"facts.{name}" for name in reads.facts}
        return tuple(sorted(wanted | (self.absent & set(reads.context))))


def question_from(record: bytes, *, now_ms: int | None = None) -> Replay:
    """`now_ms`: when the call was made, for rules that read the time and records that do not hold it."""
    body = orjson.loads(record)
    context = body["context"]
    absent = {name for name in _WHEN_READ if name not in context} | set(body["redacted"])
    if now_ms is not None:
        absent.discard("time")
    sweeping = context.get("sweeping", _sweeping(body["tool"]))
    if sweeping is not None:
        absent.discard("sweeping")
    asked = Asked(
        caller=body["principal"],
        tool=body["tool"],
        environment=context["environment"],
        session=context.get("session"),
        now_ms=context.get("time", now_ms or 0),
        facts={name: _hashable(value) for name, value in context["facts"].items() if value is not None},
        scopes=tuple(context.get("scopes", ())),
        sweeping=sweeping is not False,
        cost_micros=context.get("cost", 0),
        labels=frozenset(context.get("labels", ())),
    )
    return Replay(asked=asked, verdict=_verdict(body), set_digest=body["policy_refs"]["set"], absent=frozenset(absent))


def _verdict(body: Mapping[str, Any]) -> Verdict:
    behavior = Behavior(body["behavior"])
    rules = tuple(Rule(**rule) for rule in body["rule_refs"])
    return Verdict(
        behavior=behavior,
        rules=rules,
        digest=body["policy_refs"]["slice"],
        source=body["source"],
        reason=body["reason"],
        errors=tuple(body["errors"]),
        suggestion=next(iter(body["suggested_updates"]), ""),
        demands=_demands_of(body, rules) if behavior is Behavior.ASK else (),
    )


def _demands(verdict: Verdict) -> dict[str, Any]:
    """Only where somebody is asked; the rule's reason and place stand in `rule_refs`."""
    if not verdict.demands:
        return {}
    return {"demands": wants.told(verdict.demands)}


def _demands_of(body: Mapping[str, Any], rules: Sequence[Rule]) -> tuple[Demand, ...]:
    """A record from before rules could name approvers demands what a rule without annotations does."""
    if "demands" not in body:
        return demanded(rules)
    by_id = {rule.id: rule for rule in rules}
    return tuple(
        Demand(
            rule=each["rule"], where=by_id[each["rule"]].where, reason=by_id[each["rule"]].reason,
            groups=tuple(each["groups"]), quorum=each["quorum"], deadline_seconds=each["deadline_seconds"],
            step_up=each["step_up"],
        )
        for each in body["demands"]
    )  # fmt: skip


def _what_was_read(asked: Asked, reads: Reads) -> dict[str, Any]:
    values = {
        "session": asked.session,
        "scopes": list(asked.scopes),
        "sweeping": asked.sweeping,
        "time": asked.now_ms,
        "cost": asked.cost_micros,
        "labels": sorted(asked.labels),
    }
    return {name: values[name] for name in _WHEN_READ if name in reads.context}


def _sweeping(tool: Mapping[str, Any]) -> bool | None:
    """What is so for every call of a tool: one that reads changes nothing, one that declares nothing names nothing."""
    if tool["effects"] == Effects.READ:
        return False
    return None if tool["changes"] else True


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
