"""Cache verdicts and their decision records for one version of the policies.

The cache key holds what rules can distinguish: caller, tool, environment, facts, and the other attributes that the
slice reads. A verdict that depends on time, cost or labels is not cached, nor one for a caller without a cache key, nor
one on a call that takes another one back. The digest of the policies is part of the key, so versions never share
entries. The cache is bounded for the whole process, because a verdict with its record takes about two kilobytes.
"""

from typing import Any

from deputize.core.bounded_dict import BoundedDict
from deputize.core.decision import PolicyRequest, RecordedVerdict, Verdict
from deputize.govern.policy.cedar import CompiledPolicies, evaluate_slice, is_costly
from deputize.govern.policy.cedar_schema import list_scopes
from deputize.govern.policy.decision_records import DecisionRecorder
from deputize.govern.policy.evaluation_job import JobRunner, evaluate_costly_slice
from deputize.govern.policy.slices import PolicySlice

MAX_CACHED_DECISIONS = 30_000
_TYPICAL_BYTES = 2048
DecisionEntries = BoundedDict[tuple[Any, ...], RecordedVerdict]


class DecisionCache:
    """Verdicts of one version of the policies. `key` is the tenant's key for decision record ids."""

    def __init__(self, policies: CompiledPolicies, *, key: bytes, entries: DecisionEntries | None = None) -> None:
        self.policies = policies
        self._recorder = DecisionRecorder(policies.digest, key)
        self._entries: DecisionEntries = BoundedDict(MAX_CACHED_DECISIONS) if entries is None else entries
        self._digest = policies.digest

    def decide(self, request: PolicyRequest) -> RecordedVerdict:
        return self._decide_by(request, self.policies.get_request_slice(request))

    def _decide_by(self, request: PolicyRequest, slice_: PolicySlice) -> RecordedVerdict:
        key = build_cache_key(request, slice_, self._digest)
        entry = self._entries.get(key) if key is not None else None
        if entry is not None:
            return entry
        return self._store_decision(request, key, self.decide_uncached(request))

    async def decide_off_loop(self, request: PolicyRequest, run_job: JobRunner) -> RecordedVerdict:
        """Decide as `decide` does, and evaluate rules that take long in another process."""
        slice_ = await self.policies.load_request_slice(request)
        if not is_costly(slice_, request.facts):
            return self._decide_by(request, slice_)
        key = build_cache_key(request, slice_, self._digest)
        entry = self._entries.get(key) if key is not None else None
        if entry is not None:
            return entry
        slice_, query, _ = self.policies.prepare_query(request)
        verdict = await evaluate_costly_slice(slice_, query, run_job)
        decision = self._recorder.record_decision(query, slice_, verdict, request.unrecorded_facts)
        # A slice that took too long may be evaluated in time when there is less to do.
        return decision if verdict.errors else self._store_decision(request, key, decision)

    def _store_decision(
        self, request: PolicyRequest, key: tuple[Any, ...] | None, decision: RecordedVerdict
    ) -> RecordedVerdict:
        if key is None:
            return decision
        # Callers choose how long facts are, and both the key and the record contain them.
        size = len(decision.record) + len(repr(request.facts))
        return self._entries.put(key, decision, weight=1 + size // _TYPICAL_BYTES)

    def decide_uncached(self, request: PolicyRequest) -> RecordedVerdict:
        slice_, query, cedar_entities = self.policies.prepare_query(request)
        return self._recorder.record_decision(
            query, slice_, evaluate_slice(slice_, query, cedar_entities), request.unrecorded_facts
        )

    def record_verdict(self, request: PolicyRequest, verdict: Verdict) -> RecordedVerdict:
        """Record a verdict that another engine took part in. Never cached, because its inputs are unknown."""
        slice_, query, _ = self.policies.prepare_query(request)
        return self._recorder.record_decision(query, slice_, verdict, request.unrecorded_facts)


def build_cache_key(request: PolicyRequest, slice_: PolicySlice, set_digest: str) -> tuple[Any, ...] | None:
    caller_key = request.caller.decision_cache_key
    if slice_.is_volatile or not caller_key or request.undone is not None:
        return None
    digest = request.contract.digest
    is_sweeping = request.has_unbounded_scope if slice_.has_sweeping else None
    if not slice_.is_per_call and not request.facts:
        return (caller_key, digest, request.environment, set_digest, is_sweeping)
    try:
        facts = tuple(request.facts.items())
        hash(facts)
    except TypeError:
        return None  # an unhashable value cannot be part of a key
    reads = slice_.reads.context
    session = request.session if "session" in reads else None
    scopes = list_scopes(request) if "scopes" in reads else ()
    return (caller_key, digest, request.environment, set_digest, is_sweeping, facts, session, scopes)
