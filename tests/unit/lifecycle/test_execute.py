"""What a problem of a dispatched mutation really says: a verdict, nothing happened, or not known."""

import pytest

from deputize.core.contract.contract import Contract
from deputize.core.errors import (
    Canceled,
    DeadlineExceeded,
    InternalError,
    OutcomeUnknown,
    Problem,
    ResultInvalid,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    ToolTimeout,
    Unavailable,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.lifecycle.execute import can_retry, classify_problem
from deputize.lifecycle.phases import Claim
from tests.support.scripted_tools import TOOLS

CONTRACTS: dict[str, Contract] = {tool.contract.name: tool.contract for tool in TOOLS}
FIRST, CONFLICTS = Claim(call_id="c", epoch=1), Claim(call_id="c", epoch=2)
VERDICTS = [ToolFailed, ResultInvalid, Canceled]
NOTHING = [ToolPrecondition, ToolConflict, SemanticViolation, DeadlineExceeded, UpstreamRateLimited]
LOST_ANSWERS = [UpstreamUnavailable, UpstreamTimeout, ToolTimeout, Unavailable, InternalError]


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("held", [FIRST, CONFLICTS])
@pytest.mark.parametrize("kind", VERDICTS)
def test_the_tools_verdict_is_known(kind: type[Problem], held: Claim) -> None:
    problem = kind("x")
    assert classify_problem(CONTRACTS["put"], problem, held) is problem
    assert not problem.nothing_happened


@pytest.mark.requirement("NEW-3")
def test_the_verdict_on_a_repetition_is_known_only_where_the_service_recognizes_it() -> None:
    problem = ToolFailed("not found")
    assert classify_problem(CONTRACTS["put"], problem, FIRST, may_have_acted=True) is problem
    assert isinstance(classify_problem(CONTRACTS["assign"], problem, FIRST, may_have_acted=True), OutcomeUnknown)
    assert classify_problem(CONTRACTS["assign"], problem, FIRST) is problem


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("kind", NOTHING)
def test_what_proves_that_nothing_happened_proves_it_for_one_attempt_of_one_owner(kind: type[Problem]) -> None:
    problem = kind("x")
    assert classify_problem(CONTRACTS["put"], problem, FIRST) is problem
    assert isinstance(classify_problem(CONTRACTS["put"], problem, CONFLICTS), OutcomeUnknown)
    later = problem.replace(nothing_happened=False)  # an attempt before this one may have acted
    assert isinstance(classify_problem(CONTRACTS["put"], later, FIRST), OutcomeUnknown)


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("held", [FIRST, CONFLICTS])
@pytest.mark.parametrize("kind", LOST_ANSWERS)
def test_a_lost_answer_is_not_known(kind: type[Problem], held: Claim) -> None:
    told = classify_problem(CONTRACTS["note"], kind("x"), held)
    assert isinstance(told, OutcomeUnknown)
    assert not told.nothing_happened
    assert told.details["cause"] == kind.spec.slug


@pytest.mark.requirement("INV-12")
def test_reads_and_upstreams_that_take_a_key_once_may_be_repeated() -> None:
    lost, nothing = UpstreamTimeout("x"), UpstreamRateLimited("x")
    assert [can_retry(CONTRACTS[name], lost) for name in ("look", "put", "assign", "note", "erase")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert all(can_retry(contract, nothing) for contract in CONTRACTS.values())


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("kind", [*VERDICTS, *NOTHING, *LOST_ANSWERS])
def test_of_a_read_it_is_known_that_it_changed_nothing(kind: type[Problem]) -> None:
    problem = kind("x")
    assert classify_problem(CONTRACTS["look"], problem, FIRST) is problem
    assert classify_problem(CONTRACTS["look"], problem, CONFLICTS) is problem
