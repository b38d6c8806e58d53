"""Approval codes: valid for one unchanged approval request, shown only in the terminal, and hard to guess."""

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.govern.approvals.approval_codes import ApprovalCode, ApprovalCodes, build_terminal_caller
from deputize.govern.approvals.approvers import check_approver, check_break_glass, is_break_glass_met
from deputize.govern.approvals.requirements import Vote, is_plan_met
from tests.unit.govern.approvals.sample_approvers import NOW, SETTINGS, make_request, make_requirement

pytestmark = pytest.mark.requirement("GOV-3")

ONE, OTHER, BINDING = "0190b6a0-0000-7000-8000-000000000001", "0190b6a0-0000-7000-8000-000000000002", b"b" * 32


@dataclass
class Terminal:
    seconds: float = 0.0
    secret: bytes = b"s" * 32
    lines: list[ApprovalCode] = field(default_factory=list)
    codes: ApprovalCodes = field(init=False)

    def __post_init__(self) -> None:
        clock = Clock(monotonic=lambda: self.seconds, random_bytes=lambda count: self.secret[:count])
        self.codes = ApprovalCodes(clock, self.lines.append)

    def show_code(self, request_id: str = ONE, binding: bytes = BINDING) -> str:
        self.codes.show_code("dev", request_id, binding, "crm.delete_user", "ana")
        return self.lines[-1].code

    def guess_codes(self, times: int, request_id: str = ONE) -> None:
        for number in range(times):
            assert not self.codes.verify_code(request_id, BINDING, f"0000-{number:04}")


def test_the_terminal_line_has_what_an_approver_needs() -> None:
    terminal = Terminal()
    code = terminal.show_code()
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}", code)
    assert terminal.lines == [
        ApprovalCode(approval_id=ONE, tenant="dev", tool="crm.delete_user", user="ana", code=code)
    ]
    assert terminal.codes.get_tenant(ONE) == "dev"
    assert terminal.codes.get_tenant(OTHER) is None


def test_a_code_is_valid_for_its_unchanged_request_only() -> None:
    terminal = Terminal()
    code = terminal.show_code()
    assert terminal.codes.verify_code(ONE, BINDING, code)
    assert not terminal.codes.verify_code(OTHER, BINDING, code)
    assert not terminal.codes.verify_code(ONE, b"c" * 32, code)
    assert not Terminal(secret=b"t" * 32).codes.verify_code(ONE, BINDING, code)


def test_no_code_is_shown_or_accepted_while_another_gateway_may_use_the_same_database() -> None:
    lines: list[ApprovalCode] = []
    is_sole_gateway = True
    codes = ApprovalCodes(Clock(), lines.append, lambda: is_sole_gateway)
    codes.show_code("dev", ONE, BINDING, "crm.delete_user", "ana")
    is_sole_gateway = False
    assert not codes.verify_code(ONE, BINDING, lines[0].code)
    codes.show_code("dev", OTHER, BINDING, "crm.delete_user", "ana")
    assert len(lines) == 1
    is_sole_gateway = True
    assert codes.verify_code(ONE, BINDING, lines[0].code)


def test_lookalike_characters_are_accepted() -> None:
    terminal = Terminal()
    code = terminal.show_code()
    typed = code.lower().replace("0", "o").replace("1", "l").replace("-", " ")
    assert terminal.codes.verify_code(ONE, BINDING, typed)


@pytest.mark.parametrize("typed", ["", "-", "é" * 8, "0" * 100_000, "\ud800"])
def test_malformed_codes_are_rejected(typed: str) -> None:
    assert not Terminal().codes.verify_code(ONE, BINDING, typed)


def test_five_wrong_codes_lock_the_request_for_a_minute() -> None:
    terminal = Terminal()
    code = terminal.show_code()
    terminal.guess_codes(5)
    assert terminal.codes.get_lockout_seconds(ONE) == 60
    assert not terminal.codes.verify_code(ONE, BINDING, code)
    assert terminal.codes.verify_code(OTHER, BINDING, terminal.show_code(OTHER))
    terminal.seconds = 60
    assert terminal.codes.get_lockout_seconds(ONE) == 0
    assert terminal.codes.verify_code(ONE, BINDING, code)


def test_wrong_codes_lock_out_the_caller_who_sent_them_and_no_one_else() -> None:
    terminal = Terminal()
    code = terminal.show_code()
    for number in range(5):
        assert not terminal.codes.verify_code(ONE, BINDING, f"0000-{number:04}", caller="agent")
    assert not terminal.codes.verify_code(ONE, BINDING, code, caller="agent")
    for number in range(15):
        assert not terminal.codes.verify_code(f"ticket-{number}", BINDING, "0000-0000", caller="agent")
    assert not terminal.codes.verify_code(OTHER, BINDING, terminal.show_code(OTHER), caller="agent")
    assert terminal.codes.get_lockout_seconds(ONE, caller="ana") == 0
    assert terminal.codes.verify_code(ONE, BINDING, code, caller="ana")


def test_twenty_wrong_codes_in_a_minute_lock_every_request() -> None:
    terminal = Terminal()
    for number in range(20):
        terminal.guess_codes(1, f"ticket-{number}")
    code = terminal.show_code()
    assert not terminal.codes.verify_code(ONE, BINDING, code)
    terminal.seconds = 59.9
    assert not terminal.codes.verify_code(ONE, BINDING, code)
    terminal.seconds = 60
    assert terminal.codes.verify_code(ONE, BINDING, code)


def test_wrong_codes_far_apart_lock_only_their_request() -> None:
    terminal = Terminal()
    for number in range(40):
        terminal.guess_codes(1, f"ticket-{number}")
        terminal.seconds += 4
    assert terminal.codes.verify_code(ONE, BINDING, terminal.show_code())


def test_guessing_is_limited_to_five_attempts_a_minute() -> None:
    terminal = Terminal()
    tried = 0
    for _ in range(3600):
        terminal.seconds += 1
        if terminal.codes.get_lockout_seconds(ONE) == 0:
            terminal.guess_codes(1)
            tried += 1
    assert tried <= 5 * 60


def test_a_code_decides_once_and_the_next_is_shown() -> None:
    terminal = Terminal()
    first = terminal.show_code()
    terminal.codes.use_code(ONE)
    second = terminal.lines[-1].code
    assert first != second
    assert not terminal.codes.verify_code(ONE, BINDING, first)
    assert terminal.codes.verify_code(ONE, BINDING, second)


@given(st.text(max_size=70))
def test_no_other_text_is_the_code(typed: str) -> None:
    terminal = Terminal()
    code = terminal.show_code()
    read = typed[:64].upper().replace("-", "").replace(" ", "").replace("O", "0").replace("I", "1").replace("L", "1")
    assert terminal.codes.verify_code(ONE, BINDING, typed) == (read == code.replace("-", ""))


def test_a_valid_code_makes_a_member_of_every_group() -> None:
    asked = make_request(
        make_requirement("a", groups=("oncall", "leads")), make_requirement("b", groups=("legal",), step_up="hwk")
    )
    person = build_terminal_caller(asked, now=NOW)
    assert (person.tenant, person.user, person.issuer) == ("acme", "terminal", "terminal")
    assert check_approver(person, asked, now=NOW, settings=SETTINGS) == {0, 1}


def test_a_quorum_needs_one_code_per_person() -> None:
    votes: tuple[Vote, ...] = ()
    for name in ("terminal", "terminal 2", "terminal 3"):
        asked = make_request(make_requirement(quorum=3), votes=votes)
        assert not is_plan_met(asked.plan, votes)
        person = build_terminal_caller(asked, now=NOW)
        assert person.user == name
        counts = check_approver(person, asked, now=NOW, settings=SETTINGS)
        votes = (*votes, Vote(voter=person.user, approve=True, requirement_indexes=counts))
    assert is_plan_met(asked.plan, votes)


def test_two_codes_make_an_emergency_override() -> None:
    votes: tuple[Vote, ...] = ()
    for _ in range(2):
        assert not is_break_glass_met(votes)
        person = build_terminal_caller(make_request(votes=votes), now=NOW)
        check_break_glass(person, make_request(votes=votes), now=NOW, settings=SETTINGS)
        votes = (*votes, Vote(voter=person.user, approve=True, requirement_indexes=frozenset(), is_break_glass=True))
    assert is_break_glass_met(votes)
