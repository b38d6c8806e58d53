"""Limit how many readers of one kind, such as of the audit, a tenant has at once in this process.

One person takes at most half of them, or fewer, and people who are no administrators leave some to those who are: no
one can keep the administrators from reading what they do.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deputize.core.caller import Caller
from deputize.core.errors import ConcurrencyLimitReached

_RETRY_MS: Final = 1000
_Group = tuple[str, ...]


class TenantSlots:
    def __init__(self, what: str, most: int, *, per_user: int | None = None, advice: str | None = None) -> None:
        self._what = what
        self._most = most
        self._per_user = max(1, most // 2) if per_user is None else per_user
        self._advice = advice
        self._counts: Counter[_Group] = Counter()

    @contextmanager
    def take(self, caller: Caller) -> Iterator[None]:
        """Take a slot while the block runs; raise `ConcurrencyLimitReached` if none is left for this caller."""
        limits = self._list_limits(caller)
        for whose, group, most in limits:
            if self._counts[group] >= most:
                raise ConcurrencyLimitReached(
                    f"{whose} {most} {self._what} open already, as many as one gateway allows",
                    details={"kind": "concurrency", "limit": most, "used": most},
                    advice=self._advice,
                    retry_after_ms=_RETRY_MS,
                    nothing_happened=True,
                )
        groups = [group for _, group, _ in limits]
        self._counts.update(groups)
        try:
            yield
        finally:
            for group in groups:
                self._counts[group] -= 1
                if not self._counts[group]:
                    del self._counts[group]

    def _list_limits(self, caller: Caller) -> list[tuple[str, _Group, int]]:
        """List whose slots are counted, under which name, and how many there are at most."""
        tenant, most = caller.tenant, self._most
        limits: list[tuple[str, _Group, int]] = [("this tenant has", (tenant,), most)]
        if not caller.is_admin:
            limits.append(("the people of this tenant have", (tenant, "people"), most - max(1, most // 4)))
            limits.append(("this user has", (tenant, "user", caller.user), self._per_user))
        return limits
