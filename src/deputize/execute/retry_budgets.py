"""Keep the retry budget of each external service of a tenant: how many failed attempts may still be repeated.

Retries help while a service fails now and then. While it fails often, they are load that it cannot carry, so each
service has a budget of them: a share of its calls, and a few beyond that for services that are rarely called. Each
process counts alone: a share of each one's calls is the same share of all of them.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from deputize.core.contract.contract import Contract

# The most that is saved up, and what a service gets by time alone.
_MAX_SAVED_RETRIES: Final = 10.0
_RETRIES_PER_SECOND: Final = 1.0
# The services of one tenant that have a budget of their own; all further ones share one.
_MAX_TENANT_SERVICES: Final = 1000
_OTHER_SERVICES: Final = ""


class RetryBudget:
    """The budget of a service. In any time, retries are at most ten, one for each second, and their share of calls."""

    __slots__ = ("_refilled_at", "_saved_retries", "_share")

    def __init__(self, share: float, now: float) -> None:
        self._share = share
        self._saved_retries = _MAX_SAVED_RETRIES
        self._refilled_at = now

    def count_call(self) -> None:
        """Count the first attempt of a call."""
        self._saved_retries = min(self._saved_retries + self._share, _MAX_SAVED_RETRIES)

    def take_retry(self, now: float) -> bool:
        """Take one retry from the budget; False if it is spent."""
        self._refill(now)
        if self._saved_retries < 1.0:
            return False
        self._saved_retries -= 1.0
        return True

    def is_idle(self, now: float) -> bool:
        """Tell whether the budget is that of a service that was never called."""
        self._refill(now)
        return self._saved_retries >= _MAX_SAVED_RETRIES

    def _refill(self, now: float) -> None:
        if now > self._refilled_at:
            gain = (now - self._refilled_at) * _RETRIES_PER_SECOND
            self._saved_retries = min(self._saved_retries + gain, _MAX_SAVED_RETRIES)
            self._refilled_at = now


class RetryBudgets:
    """The budgets of this process, by tenant and service."""

    def __init__(self, monotonic: Callable[[], float], *, retry_share: float) -> None:
        self._monotonic = monotonic
        self._retry_share = retry_share
        self._budgets: dict[tuple[str, str], RetryBudget] = {}
        self._counts_by_tenant: Counter[str] = Counter()

    def find_budget(self, tenant: str, contract: Contract) -> RetryBudget | None:
        """Find the budget of a contract's service; None if it names none."""
        service = contract.external_service
        if service is None:
            return None
        return self._budgets.get((tenant, service)) or self._add_budget(tenant, service)

    def drop_idle_budgets(self) -> None:
        """Drop the budgets that are as those of services that were never called."""
        now = self._monotonic()
        for key in [key for key, each in self._budgets.items() if each.is_idle(now)]:
            del self._budgets[key]
            self._counts_by_tenant[key[0]] -= 1
        self._counts_by_tenant = +self._counts_by_tenant

    def _add_budget(self, tenant: str, service: str) -> RetryBudget:
        key = tenant, service
        if self._counts_by_tenant[tenant] >= _MAX_TENANT_SERVICES:
            key = tenant, _OTHER_SERVICES
            if (shared_budget := self._budgets.get(key)) is not None:
                return shared_budget
        self._counts_by_tenant[tenant] += 1
        budget = self._budgets[key] = RetryBudget(self._retry_share, self._monotonic())
        return budget
