"""Keep the results of reads in memory, for as long as their contracts declare them fresh.

What is kept belongs to one tenant, one caller, one version of a tool and one set of arguments: they are the key, and
nothing is found by less. A change forgets what it may have changed: each read notes, when it begins, how often the
namespace and the service of its tool have changed, and its result counts only while both still stand there.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from deputize.core.contract.contract import Contract
from deputize.core.outcome import Result
from deputize.core.value_types import frozen

MAX_RESULT_BYTES: Final = 256 * 1024
_MAX_BYTES: Final = 64 * 1024 * 1024
# At most this much of one tenant, so that others keep theirs.
_MAX_TENANT_BYTES: Final = 8 * 1024 * 1024
_MAX_TENANT_ENTRIES: Final = 5_000
# What an entry takes beside its result and its arguments.
_ENTRY_BYTES: Final = 2_048


@frozen
class PendingRead:
    """A read that has begun, and what its result will be kept under."""

    key: tuple[Hashable, ...]
    arguments_size: int
    began_at: float
    change_counts: tuple[int, ...]


@frozen
class CachedRead:
    """The result of a read: its canonical bytes, and what the tool said about it, without the payload."""

    canonical: bytes
    description: Result
    began_at: float
    change_counts: tuple[int, ...]
    size: int


@dataclass(kw_only=True, slots=True)
class _TenantReads:
    """What is kept of one tenant, the least recently used first, and how often its namespaces and services changed."""

    reads: OrderedDict[tuple[Hashable, ...], CachedRead] = field(default_factory=OrderedDict)
    size: int = 0
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def remove(self, key: tuple[Hashable, ...]) -> int:
        """Remove a result, and return its size."""
        size = self.reads.pop(key).size
        self.size -= size
        return size


class ReadCache:
    """The results of reads in this process. A tenant that needs more than its share loses its own oldest ones."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        max_bytes: int = _MAX_BYTES,
        max_tenant_bytes: int = _MAX_TENANT_BYTES,
        max_tenant_entries: int = _MAX_TENANT_ENTRIES,
    ) -> None:
        self._monotonic = monotonic
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._max_tenant_entries = max_tenant_entries
        self._size = 0
        # Empty unless a tool declares freshness, which is all that other calls look at.
        self.tenants: dict[str, _TenantReads] = {}

    def begin_read(
        self, tenant: str, contract: Contract, identity: tuple[Hashable, ...], arguments: bytes
    ) -> PendingRead:
        """Begin a read. `identity` is all of the caller and the code that its result may depend on."""
        tenant_reads = self.tenants.setdefault(tenant, _TenantReads())
        return PendingRead(
            key=(*identity, contract.digest, arguments),
            arguments_size=len(arguments),
            began_at=self._monotonic(),
            change_counts=_count_changes(tenant_reads, contract),
        )

    def find_result(self, tenant: str, pending_read: PendingRead, max_age_seconds: float) -> CachedRead | None:
        """Find a result that is not older, and that nothing has changed since."""
        tenant_reads = self.tenants[tenant]
        cached_read = tenant_reads.reads.get(pending_read.key)
        if cached_read is None:
            return None
        if cached_read.change_counts != pending_read.change_counts:
            self._size -= tenant_reads.remove(pending_read.key)
            return None
        if self.compute_age(cached_read) > max_age_seconds:
            # It stays: another caller's request may accept its age, and a newer result replaces it.
            return None
        tenant_reads.reads.move_to_end(pending_read.key)
        return cached_read

    def compute_age(self, cached_read: CachedRead) -> float:
        """Compute how long ago the read began."""
        return self._monotonic() - cached_read.began_at

    def keep_result(
        self, tenant: str, contract: Contract, pending_read: PendingRead, canonical: bytes, description: Result
    ) -> None:
        """Keep a result, unless it is large or something changed since its read began."""
        tenant_reads, key = self.tenants[tenant], pending_read.key
        is_outdated = _count_changes(tenant_reads, contract) != pending_read.change_counts
        if is_outdated or len(canonical) > MAX_RESULT_BYTES:
            return
        if key in tenant_reads.reads:
            self._size -= tenant_reads.remove(key)
        size = len(canonical) + pending_read.arguments_size + _ENTRY_BYTES
        tenant_reads.reads[key] = CachedRead(
            canonical=canonical,
            description=description,
            began_at=pending_read.began_at,
            change_counts=pending_read.change_counts,
            size=size,
        )
        tenant_reads.size += size
        self._size += size
        while tenant_reads.size > self._max_tenant_bytes or len(tenant_reads.reads) > self._max_tenant_entries:
            self._remove_oldest(tenant_reads)
        while self._size > self._max_bytes:
            # Not of the tenant that needs room now: one with many results makes room for one with few.
            self._remove_oldest(max(self.tenants.values(), key=lambda each: each.size))

    def note_write(self, tenant: str, contract: Contract) -> None:
        """Forget what a write may have changed: all of its namespace and its service, and of declared resources."""
        resources = (each.resource.partition(".")[0] for each in contract.resources)
        changed = {("namespace", contract.namespace), *(("namespace", each) for each in resources)}
        if contract.external_service is not None:
            changed.add(("service", contract.external_service))
        self._note_changes(tenant, changed)

    def note_service_change(self, tenant: str, service: str) -> None:
        """Forget what was read from a service that says it has changed."""
        self._note_changes(tenant, [("service", service)])

    def _note_changes(self, tenant: str, changed: Iterable[tuple[str, str]]) -> None:
        tenant_reads = self.tenants.get(tenant)
        if tenant_reads is not None:
            tenant_reads.changes.update(changed)

    def _remove_oldest(self, tenant_reads: _TenantReads) -> None:
        self._size -= tenant_reads.remove(next(iter(tenant_reads.reads)))


def _count_changes(tenant_reads: _TenantReads, contract: Contract) -> tuple[int, ...]:
    changes = tenant_reads.changes
    return changes["namespace", contract.namespace], changes["service", contract.external_service or ""]
