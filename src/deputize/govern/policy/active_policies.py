"""Hold the active policies: one immutable snapshot per tenant, refreshed by epoch, like revocations.

A snapshot keeps recent versions, because a commit returns the epoch it was made under and is decided as of that epoch,
even if this process has read a newer one. A tenant that never activated policies has the default policies.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, cached_property, partial
from importlib.resources import files as package_files

import asyncpg
import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.decision import PolicyRequest, RecordedVerdict, Verdict
from deputize.core.errors import PolicyFailed, Unavailable
from deputize.core.value_types import frozen
from deputize.govern.policy.cedar import CompiledPolicies, is_costly
from deputize.govern.policy.cedar_schema import FactTypes
from deputize.govern.policy.decision_cache import MAX_CACHED_DECISIONS, DecisionCache, DecisionEntries
from deputize.govern.policy.evaluation_job import JobRunner
from deputize.govern.policy.policy_job import parse_off_loop
from deputize.govern.policy.policy_parser import PolicyFile, compute_set_digest, parse_policies
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

MAX_VERSIONS = 16
# How long new active policies wait for another process to parse them.
_MAX_JOB_SECONDS = 2.0
_ARGUMENT = re.compile(r"\{[^{}]+\}")
_SQL = load_statements("policy")
# Separate from the threads that check and test drafts, so that many drafts cannot delay new active policies.
_compile_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="policies")
CacheFactory = Callable[[CompiledPolicies], DecisionCache]
# Run a job for a tenant in another process, as `JobRunner` does.
TenantJobRunner = Callable[[str, Callable[[bytes], bytes], bytes], Awaitable[bytes | None]]


@cache
def load_default_files() -> tuple[PolicyFile, ...]:
    """Load the default policies from the package."""
    text = (package_files("deputize.govern.policy") / "defaults" / "default.cedar").read_text(encoding="utf-8")
    return (PolicyFile(path="default.cedar", text=text),)


class PolicyVersion:
    """One version of the policies and the epoch it became active in. Compiled on first use: older ones are rare."""

    def __init__(self, since: int, digest: str, make: Callable[[], DecisionCache]) -> None:
        self.since = since
        self.digest = digest
        self._make = make

    @cached_property
    def decisions(self) -> DecisionCache:
        return self._make()

    def release_compiled(self) -> None:
        """Free the compiled policies; they are compiled again on next use."""
        self.__dict__.pop("decisions", None)


class TenantPolicy:
    """One tenant's policies as of one epoch; versions newest first."""

    def __init__(self, *, epoch: int, versions: Sequence[PolicyVersion]) -> None:
        self.epoch = epoch
        self.versions = tuple(versions)
        self._newest = self.versions[0].decisions
        self._since = self.versions[0].since

    @property
    def digest(self) -> str:
        return self.versions[0].digest

    @property
    def is_default(self) -> bool:
        """Whether the tenant never activated policies of its own."""
        return self._since == 0

    @property
    def policies(self) -> CompiledPolicies:
        return self._newest.policies

    def decide(self, request: PolicyRequest, *, as_of: int | None = None) -> RecordedVerdict:
        """Decide a request by the newest policies, or by those of the epoch `as_of`."""
        if as_of is None or as_of >= self._since:
            return self._newest.decide(request)
        return self._find_decisions(as_of).decide(request)

    async def decide_off_loop(
        self, request: PolicyRequest, run_job: JobRunner, *, as_of: int | None = None
    ) -> RecordedVerdict:
        """Decide as `decide` does, and evaluate rules that take long in another process."""
        decisions = self._newest if as_of is None or as_of >= self._since else self._find_decisions(as_of)
        return await decisions.decide_off_loop(request, run_job)

    def predict_verdict(self, request: PolicyRequest) -> Verdict | None:
        """Return the verdict that holds for all arguments, or None if it depends on the call."""
        if self._newest.policies.must_build_off_loop(request):
            return None
        slice_ = self._newest.policies.get_request_slice(request)
        if slice_.is_volatile or slice_.is_per_call or is_costly(slice_, {}):
            return None
        if not slice_.has_sweeping:
            return self._newest.decide(request).verdict
        narrow, broad = (self._newest.decide(each).verdict for each in _build_extreme_requests(request))
        return narrow if narrow.behavior is broad.behavior else None

    def record_verdict(self, request: PolicyRequest, verdict: Verdict, *, as_of: int | None = None) -> RecordedVerdict:
        """Record the verdict of another engine for a request."""
        decisions = self._newest if as_of is None or as_of >= self._since else self._find_decisions(as_of)
        return decisions.record_verdict(request, verdict)

    def _find_decisions(self, as_of: int) -> DecisionCache:
        for version in self.versions:
            if version.since <= as_of:
                return version.decisions
        raise PolicyFailed(f"the policies of epoch {as_of} are no longer in memory, so the call cannot be decided")


class ActivePolicies:
    """The policy snapshots of all tenants in this process."""

    def __init__(self, run_job: TenantJobRunner | None = None) -> None:
        self._run_job = run_job
        self._snapshots: dict[str, TenantPolicy] = {}
        self._decision_entries: DecisionEntries = BoundedDict(MAX_CACHED_DECISIONS)

    def get_snapshot(self, tenant: str) -> TenantPolicy | None:
        return self._snapshots.get(tenant)

    async def refresh(self, connection: Connection, tenant: str, *, key: bytes) -> TenantPolicy:
        """Load the policies if their epoch changed. `key` is the tenant's key for decision record ids."""
        before = self._snapshots.get(tenant)
        epoch: int = await connection.fetchval(_SQL["load_policy_epoch"], tenant) or 0
        if before is not None and before.epoch == epoch:
            return before
        if before is not None and before.epoch > epoch:
            before = None  # the database was restored from a backup, so nothing in memory can be trusted
        known_epoch = before.epoch if before is not None else -1
        rows = await connection.fetch(_SQL["list_policies_since"], tenant, known_epoch, epoch, MAX_VERSIONS)
        await self._parse_newest(tenant, rows)
        make_cache = partial(DecisionCache, key=key, entries=self._decision_entries)
        loop = asyncio.get_running_loop()
        after = await loop.run_in_executor(_compile_pool, _build_snapshot, epoch, rows, before, make_cache)
        # Two refreshes may overlap; the one that read earlier must not replace the newer snapshot.
        current = self._snapshots.get(tenant)
        if current is not None and current is not before and current.epoch > after.epoch:
            return current
        self._snapshots[tenant] = after
        return after

    async def _parse_newest(self, tenant: str, rows: Sequence[asyncpg.Record]) -> None:
        """Parse the newest policies in another process, if it gets to it soon; they are compiled in any case."""
        if rows and self._run_job is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MAX_JOB_SECONDS):
                    await parse_off_loop(_read_files(rows[0]), partial(self._run_job, tenant))


@frozen
class ParsedPolicies:
    """Policies that were parsed and can be activated."""

    digest: str
    files_json: bytes
    facts_json: bytes


async def parse_for_activation(files: Sequence[PolicyFile], facts: FactTypes) -> ParsedPolicies:
    """Parse policies, so that no code path can activate invalid ones. No files: the default policies.

    Outside the barrier: ten thousand rules take long, and the tenant's calls would wait.
    """
    return await asyncio.get_running_loop().run_in_executor(_compile_pool, _parse_for_activation, files, facts)


def _parse_for_activation(files: Sequence[PolicyFile], facts: FactTypes) -> ParsedPolicies:
    parse_policies(files)
    return ParsedPolicies(
        digest=compute_set_digest(files or load_default_files()),
        files_json=orjson.dumps([{"path": file.path, "text": file.text} for file in files]),
        facts_json=orjson.dumps(dict(facts), option=orjson.OPT_SORT_KEYS),
    )


async def compute_digest_off_loop(files: Sequence[PolicyFile]) -> str:
    """Compute the digest of a set in a thread; without files, of the default policies."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_compile_pool, compute_set_digest, files or load_default_files())


async def put_policies(connection: Connection, tenant: str, policies: ParsedPolicies, *, by: str) -> int:
    """Activate policies inside the caller's transaction, and return their epoch."""
    epoch: int | None = await connection.fetchval(
        _SQL["insert_policies"], tenant, policies.digest, policies.files_json, policies.facts_json, by
    )
    if epoch is None:
        raise Unavailable("this tenant is not initialised yet (it has no epochs), so its policies cannot be changed")
    return epoch


def _build_snapshot(
    epoch: int, rows: Sequence[asyncpg.Record], before: TenantPolicy | None, make_cache: CacheFactory
) -> TenantPolicy:
    """Build a snapshot from the new versions and those already in memory, which keep their caches."""
    new_versions = [
        PolicyVersion(row["changed_epoch"], row["digest"], partial(_compile_row, row, make_cache)) for row in rows
    ]
    old_versions = (
        before.versions
        if before is not None
        else (_build_default_version(make_cache),)
        if len(new_versions) < MAX_VERSIONS
        else ()
    )
    versions = [*new_versions, *old_versions][:MAX_VERSIONS]
    # Calls in progress during a change need the previous version, and almost never an older one.
    for version in versions[2:]:
        version.release_compiled()
    return TenantPolicy(epoch=epoch, versions=versions)


def _build_extreme_requests(request: PolicyRequest) -> tuple[PolicyRequest, PolicyRequest]:
    """Build the two extreme requests of a tool: with every scope bounded by an argument, and with none bounded."""
    narrow, broad = (
        tuple((each.resource, each.op, _ARGUMENT.sub(word, each.scope)) for each in request.contract.resources)
        for word in ("named", "*")
    )
    return replace(request, side_effects=narrow), replace(request, side_effects=broad)


def _build_default_version(make_cache: CacheFactory) -> PolicyVersion:
    files = load_default_files()
    return PolicyVersion(0, compute_set_digest(files), lambda: make_cache(CompiledPolicies(files)))


def _compile_row(row: asyncpg.Record, make_cache: CacheFactory) -> DecisionCache:
    return make_cache(CompiledPolicies(_read_files(row), orjson.loads(row["facts"])))


def _read_files(row: asyncpg.Record) -> tuple[PolicyFile, ...]:
    return tuple(PolicyFile(**file) for file in orjson.loads(row["files"])) or load_default_files()
