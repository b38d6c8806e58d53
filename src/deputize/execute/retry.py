"""Retry failed attempts within the deadline, with exponential backoff and full jitter."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from deputize.core.contract.contract import RetryPolicy
from deputize.core.errors import Problem, ToolFailed, UpstreamRateLimited, UpstreamUnavailable

T = TypeVar("T")
_DEFAULT_STATUS_CODES = RetryPolicy().retry_on_status_codes
_TOO_MANY_REQUESTS = 429
Attempt = Callable[[int], Awaitable[T]]


def compute_backoff(policy: RetryPolicy, attempt: int, problem: Problem, jitter: Callable[[], float]) -> float:
    """Compute the seconds before the next attempt: random up to the exponential step, at least `retry_after_ms`."""
    step = min(policy.base_seconds * policy.backoff_multiplier ** (attempt - 1), policy.backoff_max_seconds)
    return max(step * jitter(), (problem.retry_after_ms or 0) / 1000)


async def retry_after_failure(
    attempt: Attempt[T],
    problem: Problem,
    *,
    policy: RetryPolicy,
    may_repeat: Callable[[Problem], bool],
    spend_budget: Callable[[Problem], None],
    seconds_left: Callable[[], float],
    jitter: Callable[[], float] = random.random,
) -> tuple[T, int]:
    """Retry after a failed first attempt; return the result and the number of attempts, or raise the last problem.

    `spend_budget` raises the problem if no further retry is allowed.
    """
    number = 1
    while True:
        if not _is_retryable(policy, problem) or not may_repeat(problem) or number >= policy.max_attempts:
            raise problem
        pause = compute_backoff(policy, number, problem, jitter)
        if pause >= seconds_left():
            raise problem
        spend_budget(problem)
        await asyncio.sleep(pause)
        if not may_repeat(problem):
            # It became unsafe or useless during the pause.
            raise problem
        number += 1
        try:
            return await attempt(number), number
        except Problem as next_problem:
            # Nothing happened only if nothing happened in any of the attempts.
            nothing_happened = next_problem.nothing_happened and problem.nothing_happened
            problem = next_problem.replace(nothing_happened=nothing_happened, attempts=number)


def _is_retryable(policy: RetryPolicy, problem: Problem) -> bool:
    """Tell whether another attempt may succeed: an HTTP status is retried only if the policy lists it."""
    status = find_http_status(problem) if problem.spec.retryable else None
    return problem.spec.retryable and (status is None or status in policy.retry_on_status_codes)


def apply_status_codes(policy: RetryPolicy, problem: Problem) -> Problem:
    """Return what a failed attempt is by the policy's own status codes: retryable if its HTTP status is among them.

    Without codes of its own, or without a status, the problem stays what it is. A status proves no more about the
    effect than the problem did, except that a server which limits the rate did nothing.
    """
    status = None if policy.retry_on_status_codes == _DEFAULT_STATUS_CODES else find_http_status(problem)
    if status is None:
        return problem
    kind: type[Problem] = ToolFailed
    if status in policy.retry_on_status_codes:
        kind = UpstreamRateLimited if status == _TOO_MANY_REQUESTS else UpstreamUnavailable
    return kind(
        problem.message,
        details={**problem.details, "http_status": status},
        retry_after_ms=problem.retry_after_ms,
        nothing_happened=problem.nothing_happened,
    ).replace(is_redacted=problem.is_redacted)


def find_http_status(problem: Problem) -> int | None:
    """Find the HTTP status that the cause of a problem carries, as the errors of client libraries do."""
    cause = problem.__cause__
    if isinstance(problem, UpstreamRateLimited):
        return _TOO_MANY_REQUESTS
    for holder in (getattr(cause, "response", None), cause):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
                return status
    return None
