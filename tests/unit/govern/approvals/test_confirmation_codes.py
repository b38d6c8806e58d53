"""A code confirms one act of one caller, once, for five minutes; guessing locks the caller out."""

from dataclasses import dataclass, field, replace

import pytest

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.govern.approvals.confirmation_codes import (
    CODE_SECONDS,
    LOCKOUT_SECONDS,
    MAX_FAILURES,
    MAX_OPEN_CODES,
    MAX_OPEN_CODES_IN_TOTAL,
    ConfirmationCode,
    ConfirmationCodes,
    ProposedAct,
)

pytestmark = pytest.mark.requirement("GOV-2")

ROOT = Caller(tenant="dev", user="root", issuer="urn:dev")


def propose(
    caller: Caller = ROOT, command: str = "put_policies", subject: str = "sha256:1", content: str = ""
) -> ProposedAct:
    return ProposedAct.propose(caller, command, subject, content)


@dataclass
class Terminal:
    now: float = 0.0
    shown: list[ConfirmationCode] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.codes = ConfirmationCodes(Clock(monotonic=lambda: self.now), self.shown.append)

    def read_code(self, act: ProposedAct) -> str:
        confirmation_id = self.codes.show_code(act)
        return next(each.code for each in self.shown if each.confirmation_id == confirmation_id)


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_a_code_confirms_its_act_once(terminal: Terminal) -> None:
    act = propose()
    code = terminal.read_code(act)
    assert terminal.codes.use_code(act, code.lower().replace("-", " ")) == "accepted"
    assert terminal.codes.use_code(act, code) == "wrong"
    assert code not in repr(terminal.shown)


@pytest.mark.parametrize(
    "other",
    [
        propose(command="put_secret"),
        propose(subject="sha256:2"),
        propose(content="other"),
        propose(replace(ROOT, user="eve")),
        propose(replace(ROOT, tenant="other")),
        propose(replace(ROOT, issuer="urn:else")),
        propose(replace(ROOT, agents=("bot",))),
    ],
    ids=lambda each: f"{each.tenant} {each.caller} {each.command} {each.subject}",
)
def test_a_code_of_another_act_confirms_nothing_and_is_void_afterwards(terminal: Terminal, other: ProposedAct) -> None:
    code = terminal.read_code(propose())
    terminal.read_code(other)
    assert terminal.codes.use_code(other, code) == "wrong"
    # It may have been seen on its way, so it confirms its own act no more either.
    assert terminal.codes.use_code(propose(), code) == "wrong"


def test_a_code_expires_and_the_next_one_is_another(terminal: Terminal) -> None:
    act = propose()
    code = terminal.read_code(act)
    terminal.now = CODE_SECONDS - 1
    assert terminal.read_code(act) == code
    assert len(terminal.shown) == 1, "a code that is on show is not shown again"
    terminal.now = CODE_SECONDS
    assert terminal.codes.use_code(act, code) == "wrong"
    assert terminal.read_code(act) != code


def test_guessing_locks_the_caller_out_and_no_one_else(terminal: Terminal) -> None:
    act, other = propose(), propose(replace(ROOT, user="ana"))
    code, other_code = terminal.read_code(act), terminal.read_code(other)
    for number in range(MAX_FAILURES):
        assert terminal.codes.use_code(act, f"0000-000{number}") == "wrong"
    assert terminal.codes.use_code(act, code) == "locked"
    assert terminal.codes.use_code(other, other_code) == "accepted"
    terminal.now = LOCKOUT_SECONDS
    assert terminal.codes.use_code(act, code) == "accepted"


def test_no_more_codes_are_shown_than_a_person_can_tell_apart(terminal: Terminal) -> None:
    for number in range(MAX_OPEN_CODES):
        assert terminal.codes.show_code(propose(subject=str(number))) is not None
    assert terminal.codes.show_code(propose(subject="one too many")) is None
    terminal.now = CODE_SECONDS
    assert terminal.codes.show_code(propose(subject="one too many")) is not None


def test_one_callers_open_codes_keep_no_other_caller_waiting(terminal: Terminal) -> None:
    for number in range(MAX_OPEN_CODES + 1):
        terminal.codes.show_code(propose(subject=str(number)))
    assert terminal.codes.show_code(propose(replace(ROOT, user="ana"))) is not None
    assert terminal.codes.show_code(propose(replace(ROOT, tenant="other"))) is not None


def test_many_callers_cannot_fill_the_terminal(terminal: Terminal) -> None:
    asked = [propose(replace(ROOT, user=f"user-{number}")) for number in range(MAX_OPEN_CODES_IN_TOTAL + 1)]
    assert [terminal.codes.show_code(act) is None for act in asked] == [False] * MAX_OPEN_CODES_IN_TOTAL + [True]
