"""Codes of the terminal: right for one ticket as it is, told to the terminal alone, and not to be guessed."""

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.govern.approvals.codes import Codes, Told, at_the_terminal
from deputize.govern.approvals.deciders import check, check_glass, glass_broken
from deputize.govern.approvals.demands import Vote, met
from tests.unit.govern.approvals.people import NOW, SETTINGS, demand, ticket

pytestmark = pytest.mark.requirement("GOV-3")

ONE, OTHER, BINDING = "0190b6a0-0000-7000-8000-000000000001", "0190b6a0-0000-7000-8000-000000000002", b"b" * 32


@dataclass
class Terminal:
    seconds: float = 0.0
    secret: bytes = b"s" * 32
    lines: list[Told] = field(default_factory=list)
    codes: Codes = field(init=False)

    def __post_init__(self) -> None:
        clock = Clock(monotonic=lambda: self.seconds, random_bytes=lambda count: self.secret[:count])
        self.codes = Codes(clock, self.lines.append)

    def show(self, ticket_id: str = ONE, binding: bytes = BINDING) -> str:
        self.codes.tell("dev", ticket_id, binding, "crm.delete_user", "ana")
        return self.lines[-1].code

    def guess(self, times: int, ticket_id: str = ONE) -> None:
        for number in range(times):
            assert not self.codes.verify(ticket_id, BINDING, f"0000-{number:04}")


def test_the_terminal_is_told_what_a_person_needs() -> None:
    terminal = Terminal()
    code = terminal.show()
    assert re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{4}-[0-9A-HJKMNP-TV-Z]{4}", code)
    assert terminal.lines == [Told(ticket_id=ONE, tenant="dev", tool="crm.delete_user", user="ana", code=code)]
    assert terminal.codes.tenant_of(ONE) == "dev"
    assert terminal.codes.tenant_of(OTHER) is None


def test_a_code_is_right_for_its_ticket_as_it_is_and_for_no_other() -> None:
    terminal = Terminal()
    code = terminal.show()
    assert terminal.codes.verify(ONE, BINDING, code)
    assert not terminal.codes.verify(OTHER, BINDING, code)
    assert not terminal.codes.verify(ONE, b"c" * 32, code)
    assert not Terminal(secret=b"t" * 32).codes.verify(ONE, BINDING, code)


def test_what_people_type_for_a_letter_is_that_letter() -> None:
    terminal = Terminal()
    code = terminal.show()
    typed = code.lower().replace("0", "o").replace("1", "l").replace("-", " ")
    assert terminal.codes.verify(ONE, BINDING, typed)


@pytest.mark.parametrize("typed", ["", "-", "é" * 8, "0" * 100_000, "\ud800"])
def test_nonsense_is_only_wrong(typed: str) -> None:
    assert not Terminal().codes.verify(ONE, BINDING, typed)


def test_after_five_wrong_ones_even_the_right_one_waits_a_minute() -> None:
    terminal = Terminal()
    code = terminal.show()
    terminal.guess(5)
    assert terminal.codes.locked_seconds(ONE) == 60
    assert not terminal.codes.verify(ONE, BINDING, code)
    assert terminal.codes.verify(OTHER, BINDING, terminal.show(OTHER))
    terminal.seconds = 60
    assert terminal.codes.locked_seconds(ONE) == 0
    assert terminal.codes.verify(ONE, BINDING, code)


def test_twenty_wrong_ones_in_a_minute_lock_every_ticket() -> None:
    terminal = Terminal()
    for number in range(20):
        terminal.guess(1, f"ticket-{number}")
    code = terminal.show()
    assert not terminal.codes.verify(ONE, BINDING, code)
    terminal.seconds = 59.9
    assert not terminal.codes.verify(ONE, BINDING, code)
    terminal.seconds = 60
    assert terminal.codes.verify(ONE, BINDING, code)


def test_wrong_ones_far_apart_lock_nobody_else_out() -> None:
    terminal = Terminal()
    for number in range(40):
        terminal.guess(1, f"ticket-{number}")
        terminal.seconds += 4
    assert terminal.codes.verify(ONE, BINDING, terminal.show())


def test_however_long_somebody_guesses_it_is_five_a_minute() -> None:
    terminal = Terminal()
    tried = 0
    for _ in range(3600):
        terminal.seconds += 1
        if terminal.codes.locked_seconds(ONE) == 0:
            terminal.guess(1)
            tried += 1
    assert tried <= 5 * 60


def test_a_code_decides_once_and_the_next_is_shown() -> None:
    terminal = Terminal()
    first = terminal.show()
    terminal.codes.spend(ONE)
    second = terminal.lines[-1].code
    assert first != second
    assert not terminal.codes.verify(ONE, BINDING, first)
    assert terminal.codes.verify(ONE, BINDING, second)


@given(st.text(max_size=70))
def test_no_other_text_is_the_code(typed: str) -> None:
    terminal = Terminal()
    code = terminal.show()
    read = typed[:64].upper().replace("-", "").replace(" ", "").replace("O", "0").replace("I", "1").replace("L", "1")
    assert terminal.codes.verify(ONE, BINDING, typed) == (read == code.replace("-", ""))


def test_whoever_shows_the_code_is_somebody_of_every_group() -> None:
    asked = ticket(demand("a", groups=("oncall", "leads")), demand("b", groups=("legal",), step_up="hwk"))
    person = at_the_terminal(asked, now=NOW)
    assert (person.tenant, person.user, person.issuer) == ("acme", "terminal", "terminal")
    assert check(person, asked, now=NOW, settings=SETTINGS) == {0, 1}


def test_a_quorum_takes_as_many_codes_as_people() -> None:
    votes: tuple[Vote, ...] = ()
    for name in ("terminal", "terminal 2", "terminal 3"):
        asked = ticket(demand(quorum=3), votes=votes)
        assert not met(asked.asked, votes)
        person = at_the_terminal(asked, now=NOW)
        assert person.user == name
        counts = check(person, asked, now=NOW, settings=SETTINGS)
        votes = (*votes, Vote(voter=person.user, approve=True, counts=counts))
    assert met(asked.asked, votes)


def test_two_codes_break_the_glass() -> None:
    votes: tuple[Vote, ...] = ()
    for _ in range(2):
        assert not glass_broken(votes)
        person = at_the_terminal(ticket(votes=votes), now=NOW)
        check_glass(person, ticket(votes=votes), now=NOW, settings=SETTINGS)
        votes = (*votes, Vote(voter=person.user, approve=True, counts=frozenset(), glass=True))
    assert glass_broken(votes)
