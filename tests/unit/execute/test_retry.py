"""Test retries: only retryable problems, only within the deadline, with backoff and jitter."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.contract.contract import RetryPolicy
from deputize.core.errors import Problem, ToolFailed, UpstreamRateLimited, UpstreamTimeout, UpstreamUnavailable
from deputize.execute.drivers.http_answers import ServiceStatus
from deputize.execute.retry import compute_backoff, retry_after_failure

pytestmark = pytest.mark.requirement("INV-12")
QUICK = RetryPolicy(max_attempts=4, base_seconds=0.001, backoff_max_seconds=0.002)
_policies = st.builds(
    RetryPolicy,
    base_seconds=st.floats(0.001, 60),
    backoff_multiplier=st.floats(1, 10),
    backoff_max_seconds=st.floats(0.001, 300),
)


class Attempts:
    """Build a tool that fails with these problems in order and then succeeds."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = list(problems)
        self.numbers: list[int] = []

    async def __call__(self, number: int) -> str:
        self.numbers.append(number)
        if self.problems:
            raise self.problems.pop(0)
        return "done"


async def _run_retries(attempts: Attempts, first: Problem, **changes: Any) -> tuple[str, int]:
    options: dict[str, Any] = {
        "policy": QUICK, "may_repeat": lambda _: True, "spend_budget": lambda _: None,
        "seconds_left": lambda: 10.0, "jitter": lambda: 1.0,
    }  # fmt: skip
    return await retry_after_failure(attempts, first, **{**options, **changes})


def _make_unavailable(**options: Any) -> UpstreamUnavailable:
    return UpstreamUnavailable("down", **options)


@given(_policies, st.integers(1, 10), st.floats(0, 1))
def test_a_pause_is_anywhere_between_nothing_and_the_exponential_step(
    policy: RetryPolicy, attempt: int, drawn: float
) -> None:
    step = min(policy.base_seconds * policy.backoff_multiplier ** (attempt - 1), policy.backoff_max_seconds)
    assert compute_backoff(policy, attempt, _make_unavailable(), lambda: drawn) == step * drawn
    assert compute_backoff(policy, attempt, _make_unavailable(), lambda: 0.0) == 0.0
    assert compute_backoff(policy, attempt, _make_unavailable(), lambda: 1.0) <= policy.backoff_max_seconds


@given(_policies, st.integers(1, 10), st.floats(0, 1), st.integers(1, 10**6))
def test_a_pause_is_never_shorter_than_the_upstream_asked_for(
    policy: RetryPolicy, attempt: int, drawn: float, asked: int
) -> None:
    pause = compute_backoff(policy, attempt, UpstreamRateLimited("slow down", retry_after_ms=asked), lambda: drawn)
    assert pause >= asked / 1000


async def test_a_retryable_problem_is_tried_again_until_it_succeeds() -> None:
    attempts = Attempts(_make_unavailable())
    assert await _run_retries(attempts, _make_unavailable()) == ("done", 3)
    assert attempts.numbers == [2, 3]


async def test_what_is_not_retryable_is_not_tried_again() -> None:
    attempts = Attempts()
    with pytest.raises(ToolFailed) as failed:
        await _run_retries(attempts, ToolFailed("no"))
    assert (attempts.numbers, failed.value.attempts) == ([], 1)
    attempts = Attempts(ToolFailed("no"))
    with pytest.raises(ToolFailed) as failed:
        await _run_retries(attempts, _make_unavailable())
    assert (attempts.numbers, failed.value.attempts) == ([2], 2)


async def test_what_may_not_be_repeated_is_not_tried_again_however_retryable_it_is() -> None:
    attempts = Attempts()
    with pytest.raises(UpstreamUnavailable):
        await _run_retries(attempts, _make_unavailable(), may_repeat=lambda problem: problem.nothing_happened)
    assert attempts.numbers == []


async def test_each_retry_is_spent_and_none_is_made_once_the_budget_is() -> None:
    spent: list[Problem] = []

    def spend(problem: Problem) -> None:
        if len(spent) == 2:
            raise problem.replace(message="spent")
        spent.append(problem)

    attempts = Attempts(*(_make_unavailable() for _ in range(3)))
    with pytest.raises(UpstreamUnavailable, match="spent") as last:
        await _run_retries(attempts, _make_unavailable(), spend_budget=spend)
    assert (attempts.numbers, last.value.attempts, len(spent)) == ([2, 3], 3, 2)


async def test_what_is_not_repeated_anyway_costs_nothing_of_the_budget() -> None:
    def spend(problem: Problem) -> None:
        pytest.fail(f"spent for {problem}")

    slow = UpstreamRateLimited("slow down", retry_after_ms=11_000)
    for first, changes in (
        (ToolFailed("no"), {}),
        (slow, {}),
        (_make_unavailable(), {"may_repeat": lambda _: False}),
        (_make_unavailable(), {"policy": RetryPolicy(max_attempts=1)}),
    ):
        with pytest.raises(type(first)):
            await _run_retries(Attempts(), first, spend_budget=spend, **changes)


@pytest.mark.parametrize(
    ("status", "codes", "is_retried"),
    [
        (429, None, True), (500, None, True), (502, None, True), (503, None, True), (504, None, True),
        (408, None, False), (501, None, False), (507, None, False), (504, (503,), False), (507, (507,), True),
    ],
)  # fmt: skip
async def test_a_status_is_retried_only_if_the_policy_lists_it(
    status: int, codes: tuple[int, ...] | None, is_retried: bool
) -> None:
    kinds: dict[int, type[Problem]] = {429: UpstreamRateLimited, 504: UpstreamTimeout, 408: UpstreamTimeout}
    first = kinds.get(status, UpstreamUnavailable)(f"HTTP {status}")
    first.__cause__ = ServiceStatus(status)
    policy = QUICK if codes is None else QUICK.model_copy(update={"retry_on_status_codes": codes})
    attempts = Attempts()
    if is_retried:
        assert await _run_retries(attempts, first, policy=policy) == ("done", 2)
    else:
        with pytest.raises(type(first)):
            await _run_retries(attempts, first, policy=policy)
        assert attempts.numbers == []


async def test_the_last_problem_is_raised_once_all_attempts_are_used() -> None:
    attempts = Attempts(*(UpstreamUnavailable(f"down in attempt {number}") for number in (2, 3, 4)))
    with pytest.raises(UpstreamUnavailable) as last:
        await _run_retries(attempts, _make_unavailable())
    assert last.value.message == "down in attempt 4"
    assert (attempts.numbers, last.value.attempts) == ([2, 3, 4], 4)


async def test_nothing_happened_is_only_said_of_a_call_when_it_is_true_of_every_attempt() -> None:
    """The first attempt may have acted, so a later one without effect must not release the idempotency key."""
    certain = UpstreamRateLimited("slow down")
    with pytest.raises(UpstreamRateLimited) as last:
        await _run_retries(
            Attempts(certain), _make_unavailable(), policy=RetryPolicy(max_attempts=2, base_seconds=0.001)
        )
    assert not last.value.nothing_happened
    with pytest.raises(UpstreamRateLimited) as last:
        await _run_retries(
            Attempts(*[UpstreamRateLimited("slow down") for _ in range(3)]), UpstreamRateLimited("slow down")
        )
    assert last.value.nothing_happened


@pytest.mark.parametrize("left", [-1.0, 0.0, 0.001])
async def test_nothing_is_tried_that_could_only_start_after_the_deadline(left: float) -> None:
    attempts = Attempts()
    with pytest.raises(UpstreamUnavailable):
        await _run_retries(attempts, _make_unavailable(), seconds_left=lambda: left)
    assert attempts.numbers == []


async def test_an_upstream_that_asks_for_more_patience_than_there_is_time_is_not_tried_again() -> None:
    attempts = Attempts()
    with pytest.raises(UpstreamRateLimited):
        await _run_retries(attempts, UpstreamRateLimited("slow down", retry_after_ms=11_000))
    assert attempts.numbers == []


async def test_the_pause_the_upstream_asked_for_is_really_taken() -> None:
    clock: Callable[[], float] = asyncio.get_running_loop().time
    began = clock()
    await _run_retries(Attempts(), UpstreamRateLimited("slow down", retry_after_ms=60), jitter=lambda: 0.0)
    assert clock() - began >= 0.06


async def test_a_canceled_call_is_not_tried_again() -> None:
    attempts = Attempts()
    task = asyncio.create_task(_run_retries(attempts, UpstreamRateLimited("slow down", retry_after_ms=5000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert attempts.numbers == []
