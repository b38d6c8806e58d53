"""Retry failed attempts within the deadline, with exponential backoff and full jitter."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from deputize.core.contract.contract import RetryPolicy
from deputize.core.errors import Problem

T = TypeVar("T")
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
    seconds_left: Callable[[], float],
    jitter: Callable[[], float] = random.random,
) -> tuple[T, int]:
    """Retry after a failed first attempt; return the result and the number of attempts, or raise the last problem."""
    number = 1
    while True:
        if not problem.spec.retryable or not may_repeat(problem) or number >= policy.max_attempts:
            raise problem
        pause = compute_backoff(policy, number, problem, jitter)
        if pause >= seconds_left():
            raise problem
        await asyncio.sleep(pause)
        number += 1
        try:
            return await attempt(number), number
        except Problem as next_problem:
            # Nothing happened only if nothing happened in any of the attempts.
            nothing_happened = next_problem.nothing_happened and problem.nothing_happened
            problem = next_problem.replace(nothing_happened=nothing_happened, attempts=number)
