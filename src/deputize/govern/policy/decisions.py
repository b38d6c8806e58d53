"""One version's answers with their records, each worked out once per kind of question.

The key is what the rules could tell apart: who is asking, the tool, the environment, the facts, and of the rest what
the slice reads. An answer that depends on time, cost or labels is never kept, nor one for a caller whose standing has
no name. The digest of the set is part of the key, so a version never hears the answers of another; the store
behind it is bounded for the whole process, because an answer with its record takes some two kilobytes.
"""

from typing import Any

from deputize.core.decision import Decided, Question, Verdict
from deputize.govern.policy.cedar import CompiledPolicies, judge
from deputize.govern.policy.kept import Kept
from deputize.govern.policy.records import Records
from deputize.govern.policy.slices import Slice
from deputize.govern.policy.world import scopes_of

MOST_KEPT = 30_000
_USUAL_BYTES = 2048
Answers = Kept[tuple[Any, ...], Decided]


class Decisions:
    """`key` names the records; it belongs to the tenant, like the standings of its callers."""

    def __init__(self, policies: CompiledPolicies, *, key: bytes, kept: Answers | None = None) -> None:
        self.policies = policies
        self._records = Records(policies.digest, key)
        self._kept: Answers = Kept(MOST_KEPT) if kept is None else kept
        self._digest = policies.digest

    def decide(self, question: Question) -> Decided:
        key = key_of(question, self.policies.slice_of(question), self._digest)
        found = self._kept.get(key) if key is not None else None
        if found is not None:
            return found
        decided = self.decide_anew(question)
        if key is None:
            return decided
        # Facts are as long as callers make them, and stand in the key and in the record.
        size = len(decided.record) + len(repr(question.facts))
        return self._kept.keep(key, decided, weight=1 + size // _USUAL_BYTES)

    def decide_anew(self, question: Question) -> Decided:
        slice_, asked, known = self.policies.prepare(question)
        return self._records.made(asked, slice_, judge(slice_, asked, known), question.withheld)

    def recorded(self, question: Question, verdict: Verdict) -> Decided:
        """An answer that was not, or not only, these policies'; never kept, since what it hangs on is not known."""
        slice_, asked, _ = self.policies.prepare(question)
        return self._records.made(asked, slice_, verdict, question.withheld)


def key_of(question: Question, slice_: Slice, set_digest: str) -> tuple[Any, ...] | None:
    standing = question.caller.standing
    if slice_.fleeting or not standing:
        return None
    digest = question.contract.digest
    sweeping = question.sweeping if slice_.sweeping else None
    if not slice_.per_call and not question.facts:
        return (standing, digest, question.environment, set_digest, sweeping)
    try:
        facts = tuple(question.facts.items())
        hash(facts)
    except TypeError:
        return None  # a value that cannot be compared cannot be looked up
    reads = slice_.reads.context
    session = question.session if "session" in reads else None
    scopes = scopes_of(question) if "scopes" in reads else ()
    return (standing, digest, question.environment, set_digest, sweeping, facts, session, scopes)
