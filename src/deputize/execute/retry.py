"""Retries: only what says it is retryable, only while there is time, exponentially with full jitter."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from deputize.core.contract import RetryPolicy
from deputize.core.errors import Problem

T = TypeVar("T")
Attempt = Callable[[int], Awaitable[T]]


def backoff(policy: RetryPolicy, attempt: int, problem: Problem, jitter: Callable[[], float]) -> float:
    """Seconds before attempt n + 1: anywhere up to the exponential step, never less than the upstream asked for."""
    step = min(policy.base_seconds * policy.backoff_multiplier ** (attempt - 1), policy.backoff_max_seconds)
    return max(step * jitter(), (problem.retry_after_ms or 0) / 1000)


async def retried(
    attempt: Attempt[T],
    problem: Problem,
    *,
    policy: RetryPolicy,
    may_repeat: Callable[[Problem], bool],
    seconds_left: Callable[[], float],
    jitter: Callable[[], float] = random.random,
) -> tuple[T, int]:
    """What follows a failed first attempt: the first success and how many attempts it took, or the last problem."""
    number = 1
    while True:
        problem.attempts = number
        if not problem.face.retryable or not may_repeat(problem) or number >= policy.max_attempts:
            raise problem
        pause = backoff(policy, number, problem, jitter)
        if pause >= seconds_left():
            raise problem
        await asyncio.sleep(pause)
        number += 1
        try:
            return await attempt(number), number
        except Problem as again:
            # Nothing happened only if nothing happened in any attempt: what proves it for this one leaves the others.
            again.nothing_happened = again.nothing_happened and problem.nothing_happened
            problem = again
