"""What an attempt says about its service: only failures of the service itself count against it."""

from types import SimpleNamespace

import pytest

from deputize.core.errors import (
    CredentialExpired,
    DeadlineExceeded,
    EgressDenied,
    OutcomeUnknown,
    Problem,
    ResourceLimitExceeded,
    ResultInvalid,
    ToolFailed,
    ToolPrecondition,
    ToolTimeout,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.execute.circuits.verdicts import judge_attempt
from deputize.execute.upstreams.faults import UnreadableAnswer, UpstreamNotAtFault

pytestmark = pytest.mark.requirement("RES-1")


def with_status(problem: Problem, status: int) -> Problem:
    cause = Exception()
    cause.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]  # as client libraries do
    problem.__cause__ = cause
    return problem


def judge(problem: Problem, *, is_remote: bool = True, seconds: float = 10.0) -> bool | None:
    return judge_attempt(problem, is_remote=is_remote, seconds=seconds, full_seconds=10.0)


@pytest.mark.parametrize("is_remote", [True, False])
@pytest.mark.parametrize(
    "problem",
    [
        UpstreamUnavailable("no answer"), UpstreamTimeout("too slow"), ToolTimeout("too slow"),
        OutcomeUnknown("the answer was lost"), with_status(ToolFailed("500"), 500),
        with_status(OutcomeUnknown("500"), 500),
        with_status(UpstreamUnavailable("503"), 503), UnreadableAnswer("not JSON"),
    ],
)  # fmt: skip
def test_a_service_that_does_not_answer_has_failed(problem: Problem, is_remote: bool) -> None:
    assert judge(problem, is_remote=is_remote) is False


@pytest.mark.parametrize(
    "problem",
    [
        UpstreamRateLimited("slow down"), CredentialExpired("expired"), DeadlineExceeded("over"),
        EgressDenied("not allowed"), UpstreamNotAtFault("this gateway is stopping"),
    ],
)  # fmt: skip
def test_what_the_service_is_not_responsible_for_says_nothing(problem: Problem) -> None:
    assert judge(problem) is None


def test_a_timeout_counts_only_if_the_tool_had_its_whole_time() -> None:
    for problem in (UpstreamTimeout("too slow"), ToolTimeout("too slow")):
        assert judge(problem, seconds=9.5) is False
        assert judge(problem, seconds=1.0) is None


@pytest.mark.parametrize(
    "problem", [ToolFailed("no such order"), ToolPrecondition("closed"), ResultInvalid("too many")]
)
def test_the_verdict_of_a_server_is_an_answer_and_that_of_a_function_may_be_its_own_fault(problem: Problem) -> None:
    assert judge(problem) is True
    assert judge(problem, is_remote=False) is None


def test_a_refused_request_is_an_answer() -> None:
    for status in (400, 404, 422):
        assert judge(with_status(UpstreamUnavailable(str(status)), status)) is True
        assert judge(with_status(ToolFailed(str(status)), status), is_remote=False) is True


def test_a_redirect_that_leaves_the_outcome_unknown_is_an_answer() -> None:
    assert judge(with_status(OutcomeUnknown("redirect"), 303)) is True


def test_an_answer_that_is_too_large_is_an_answer() -> None:
    lost = OutcomeUnknown("too large")
    lost.__cause__ = ResourceLimitExceeded("too large")
    assert judge(lost) is True
