"""What a problem of a dispatched mutation really says: a verdict, nothing happened, or not known."""

import pytest

from deputize.core.contract import Contract
from deputize.core.errors import (
    Canceled,
    Crashed,
    DeadlineExceeded,
    Internal,
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
from deputize.lifecycle.execute import honest, may_repeat
from deputize.lifecycle.phases import Held
from tests.integration.lifecycle.tools import TOOLS

CONTRACTS: dict[str, Contract] = {tool.contract.name: tool.contract for tool in TOOLS}
FIRST, TAKEN = Held(call_id="c", epoch=1), Held(call_id="c", epoch=2)
VERDICTS = [ToolFailed, Crashed, ResultInvalid, Canceled]
NOTHING = [ToolPrecondition, ToolConflict, SemanticViolation, DeadlineExceeded, UpstreamRateLimited]
LOST = [UpstreamUnavailable, UpstreamTimeout, ToolTimeout, Unavailable, Internal]


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("held", [FIRST, TAKEN])
@pytest.mark.parametrize("kind", VERDICTS)
def test_the_tools_verdict_is_known(kind: type[Problem], held: Held) -> None:
    problem = kind("x")
    assert honest(CONTRACTS["put"], problem, held) is problem
    assert not problem.nothing_happened


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("kind", NOTHING)
def test_what_proves_that_nothing_happened_proves_it_for_one_attempt_of_one_owner(kind: type[Problem]) -> None:
    problem = kind("x")
    assert honest(CONTRACTS["put"], problem, FIRST) is problem
    assert isinstance(honest(CONTRACTS["put"], problem, TAKEN), OutcomeUnknown)
    problem.nothing_happened = False  # an attempt before this one may have acted
    assert isinstance(honest(CONTRACTS["put"], problem, FIRST), OutcomeUnknown)


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("held", [FIRST, TAKEN])
@pytest.mark.parametrize("kind", LOST)
def test_a_lost_answer_is_not_known(kind: type[Problem], held: Held) -> None:
    told = honest(CONTRACTS["note"], kind("x"), held)
    assert isinstance(told, OutcomeUnknown)
    assert not told.nothing_happened
    assert told.details["cause"] == kind.face.slug


@pytest.mark.requirement("INV-12")
def test_reads_and_upstreams_that_take_a_key_once_may_be_repeated() -> None:
    lost, nothing = UpstreamTimeout("x"), UpstreamRateLimited("x")
    assert [may_repeat(CONTRACTS[name], lost) for name in ("look", "put", "assign", "note", "erase")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert all(may_repeat(contract, nothing) for contract in CONTRACTS.values())


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize("kind", [*VERDICTS, *NOTHING, *LOST])
def test_of_a_read_it_is_known_that_it_changed_nothing(kind: type[Problem]) -> None:
    problem = kind("x")
    assert honest(CONTRACTS["look"], problem, FIRST) is problem
    assert honest(CONTRACTS["look"], problem, TAKEN) is problem
