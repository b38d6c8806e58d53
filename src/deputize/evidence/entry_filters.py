"""Filter audit entries: as terms of the index, as texts that an entry must contain, and exactly.

The index and the texts are quick and may let a few entries more pass; `is_match` then reads the entry and is exact.
`deputize.list_audit_terms` makes the terms: both take values as JSON spells them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from deputize.core.entry_kinds import DecisionName

_DENIED: Final = frozenset({"denied", "blocked"})
# What most entries have in common is not indexed.
_COMMON_KINDS: Final = frozenset({"read", "intent", "outcome"})
_COMMON_OUTCOME: Final = "succeeded"
# The kinds of entries that calls leave by themselves.
CALL_KINDS: Final = frozenset({"read", "refusal", "intent", "outcome", "yield"})


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryFilter:
    """What entries must have. `user` and `agent` are pseudonyms; None matches everything."""

    user: str | None = None
    agent: str | None = None
    tool: str | None = None
    decision: DecisionName | None = None
    rule: str | None = None
    outcome: str | None = None
    resource: str | None = None
    session: str | None = None
    trace: str | None = None
    kind: str | None = None
    # Only what calls did: no administrative acts, decisions of approvers or circuits.
    of_calls: bool = False
    # The whole chain of an agent that sees only its own entries: the user, then each agent.
    chain: tuple[str, ...] = ()

    def list_labels(self) -> list[str]:
        """List the labels whose terms the index has."""
        labels = {
            "user": self.user or (self.chain[0] if self.chain else None),
            "agent": self.agent or (self.chain[1] if len(self.chain) > 1 else None),
            "tool": self.tool,
            "decision": None if self.decision == "allow" else self.decision,
            "rule": self.rule,
            "outcome": None if self.outcome == _COMMON_OUTCOME else self.outcome,
            "resource": self.resource,
            "session": self.session,
            "trace": self.trace,
            "kind": None if self.kind in _COMMON_KINDS else self.kind,
        }
        return [f"{name}={_spell(value).partition(chr(34))[0]}" for name, value in labels.items() if value is not None]

    def list_needles(self) -> list[list[str]]:
        """List what an entry contains if it matches: of each list, one text."""
        needles = [
            [f'"{name}":"{_spell(value)}"']
            for name, value in (
                ("tool", self.tool),
                ("outcome", self.outcome),
                ("session", self.session),
                ("trace", self.trace),
                ("kind", self.kind),
            )
            if value is not None
        ]
        if self.user is not None:
            needles.append([f'"caller":["{self.user}"'])
        if self.chain:
            needles.append(['"caller":["' + '","'.join(self.chain) + '"]'])
        needles += [[f'"{_spell(value)}"'] for value in (self.agent, self.rule) if value is not None]
        if self.resource is not None:
            needles.append([f" {_spell(self.resource)} "])
        if self.decision is not None:
            needles.append(_DECISION_NEEDLES[self.decision])
        if self.of_calls:
            # A request that was refused before it was a call has an entry of the kind `refusal`, too.
            needles += [[f'"kind":"{kind}"' for kind in sorted(CALL_KINDS)], ['"call":"']]
        return needles

    def is_match(self, entry: Mapping[str, Any]) -> bool:
        """Tell whether a parsed entry has everything."""
        caller = entry["caller"]
        return (
            all(
                value is None or entry.get(name) == value
                for name, value in (
                    ("tool", self.tool),
                    ("outcome", self.outcome),
                    ("session", self.session),
                    ("trace", self.trace),
                    ("kind", self.kind),
                )
            )
            and (self.user is None or caller[:1] == [self.user])
            and (not self.chain or tuple(caller) == self.chain)
            and (self.agent is None or self.agent in caller[1:])
            and (self.rule is None or self.rule in entry.get("rules", ()))
            and (self.resource is None or self.resource in list_resources(entry))
            and (self.decision is None or self.decision == get_decision(entry))
            and (not self.of_calls or (entry["kind"] in CALL_KINDS and "call" in entry))
        )


_DECISION_NEEDLES: Final[dict[DecisionName, list[str]]] = {
    "allow": ['"rules":['],
    "ask": ['"approval":"'],
    "deny": [f'"outcome":"{outcome}"' for outcome in sorted(_DENIED)],
}


def _spell(value: str) -> str:
    """Spell a text as JSON does, without the quotes around it."""
    return orjson.dumps(value).decode()[1:-1]


def get_decision(entry: Mapping[str, Any]) -> DecisionName | None:
    """Return what was decided: denied, asked or allowed; None for an entry without a decision."""
    if entry.get("outcome") in _DENIED:
        return "deny"
    if "approval" in entry:
        return "ask"
    return "allow" if "rules" in entry and entry["kind"] != "refusal" else None


def list_resources(entry: Mapping[str, Any]) -> list[str]:
    """List the resources in the scopes of an entry."""
    return [scope.split(" ", 2)[1] for scope in entry.get("scopes", ()) if scope.count(" ") >= 2]
