"""Limit the requests in progress of one tenant and of one caller, so that slow requests of some leave room for others.

An interface opens each HTTP request here; authentication takes the slot, and the end of the request frees it. A tenant
may hold as many slots as are free for all others, at most: one tenant gets half, two a third each, and there is always
room for the next one.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, NoReturn

from deputize.core.caller import Caller
from deputize.core.errors import ConcurrencyLimitReached
from deputize.core.settings.server import ServerSettings

# Names of the limits in refusals and metrics; a rule of the settings cannot have them.
TENANT_REQUESTS: Final = "default:requests-per-tenant"
CALLER_REQUESTS: Final = "default:requests-per-caller"
_RETRY_MS: Final = 1000

_CallerKey = tuple[str, str, str]


class RequestSlot:
    """The slot of one request, from its first line to its end: empty until the caller is known."""

    __slots__ = ("_slots", "_token", "has_ended", "key")

    def __init__(self, slots: "RequestSlots") -> None:
        self._slots = slots
        self.key: _CallerKey | None = None
        self.has_ended = False

    def __enter__(self) -> None:
        self._token = _current_slot.set(self)

    def __exit__(self, *_: object) -> None:
        _current_slot.reset(self._token)
        self.has_ended = True
        if self.key is not None:
            self._slots.free_slot(self.key)


_current_slot: ContextVar[RequestSlot | None] = ContextVar("request_slot", default=None)


class RequestSlots:
    """The requests that this process has in progress, by tenant and by caller."""

    def __init__(self, settings: ServerSettings, *, on_refusal: Callable[[str], None]) -> None:
        self._max_requests = settings.max_requests
        self._per_tenant = settings.max_requests_per_tenant
        self._per_caller = settings.max_requests_per_caller
        self._on_refusal = on_refusal
        self._total = 0
        self._tenant_counts: dict[str, int] = {}
        self._caller_counts: dict[_CallerKey, int] = {}

    def open_request(self) -> RequestSlot:
        """Open a request for the block in which it is served; its slot is free again when the block ends."""
        return RequestSlot(self)

    def take_slot(self, caller: Caller) -> None:
        """Take the slot of the current request for its caller; raise `ConcurrencyLimitReached` if none is left.

        A request takes one, however often it authenticates. Outside of a request there is nothing to take.
        """
        slot = _current_slot.get()
        # A task that outlives its request inherits the slot; one taken then would never be freed.
        if slot is None or slot.key is not None or slot.has_ended:
            return
        tenant = caller.tenant
        # Per user, whichever agent acts: the holder of a token chooses the names of agents.
        key = tenant, caller.issuer, caller.user
        tenant_count, caller_count = self._tenant_counts.get(tenant, 0), self._caller_counts.get(key, 0)
        if caller_count >= self._per_caller:
            self._refuse(CALLER_REQUESTS, "caller", caller_count, "server.max_requests_per_caller")
        if tenant_count >= self._per_tenant:
            self._refuse(TENANT_REQUESTS, "tenant", tenant_count, "server.max_requests_per_tenant")
        if tenant_count >= self._max_requests - self._total:
            self._refuse(
                TENANT_REQUESTS,
                "tenant",
                tenant_count,
                "server.max_requests, less what is kept free for other tenants,",
            )
        slot.key = key
        self._total += 1
        self._tenant_counts[tenant] = tenant_count + 1
        self._caller_counts[key] = caller_count + 1

    def _refuse(self, rule: str, whose: str, count: int, setting: str) -> NoReturn:
        self._on_refusal(rule)
        raise ConcurrencyLimitReached(
            f"this {whose} has {count} requests in progress already, as many as {setting} allows",
            details={"rule": rule, "kind": "concurrency", "limit": count, "used": count},
            retry_after_ms=_RETRY_MS,
            nothing_happened=True,
        )

    def free_slot(self, key: _CallerKey) -> None:
        """Free the slot of a request that has ended."""
        self._total -= 1
        tenant_counts, caller_counts, tenant = self._tenant_counts, self._caller_counts, key[0]
        tenant_counts[tenant] -= 1
        if not tenant_counts[tenant]:
            del tenant_counts[tenant]
        caller_counts[key] -= 1
        if not caller_counts[key]:
            del caller_counts[key]
