"""Sessions in a browser's hands: they open as what they were sealed as, or not at all."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.govern.identity.sessions import Sessions
from deputize.govern.identity.sign_in import BEGUN_SECONDS, Begun
from tests.unit.govern.identity.tokens_kit import NOW, Time

pytestmark = pytest.mark.requirement("GOV-3")

TICKET = "01997f2e-3b1c-7a52-8d3e-2f60b1c4d5e6"
BEGUN = Begun(state="s", nonce="n", verifier="v", at=NOW, again=True)
PERSON = Caller(
    tenant="acme",
    user="sam",
    scopes=frozenset({"a", "b"}),
    session="sid",
    token_id="t-1",
    issuer="https://issuer.example",
    expires_at=NOW + 900,
    issued_at=NOW,
    groups=frozenset({"oncall", "leads"}),
    trust="trusted",
    human=True,
    auth_time=NOW - 5,
    methods=frozenset({"hwk", "pwd"}),
    console=True,
    only_decides=True,
)


def sessions(time: Time | None = None, *, root: bytes = b"r" * 32, issued_for: str = "issuer") -> Sessions:
    return Sessions(root, (time or Time()).clock, issued_for=issued_for)


def test_a_session_says_who_signed_in_and_how() -> None:
    opened = sessions().open(sessions().seal(PERSON))
    assert opened is not None
    assert replace(opened.caller, standing="") == PERSON
    assert opened.caller.standing
    assert opened.ticket is None


def test_a_session_has_a_form_token_of_its_own() -> None:
    ours = sessions()
    one, other = ours.open(ours.seal(PERSON)), ours.open(ours.seal(PERSON))
    assert one is not None
    assert other is not None
    assert len(one.form_token) == 48
    assert one.form_token != other.form_token


def test_a_session_ends() -> None:
    time = Time()
    sealed = sessions(time).seal(PERSON)
    time.seconds = 899
    assert sessions(time).open(sealed) is not None
    time.seconds = 900
    assert sessions(time).open(sealed) is None


def test_what_was_begun_ends_too_and_leads_where_it_should() -> None:
    time = Time()
    sealed = sessions(time).seal_begun(BEGUN, to="/console/tickets")
    assert sessions(time).open_begun(sealed) == (BEGUN, "/console/tickets")
    time.seconds = BEGUN_SECONDS
    assert sessions(time).open_begun(sealed) is None


def test_nothing_opens_as_something_else() -> None:
    ours = sessions()
    assert ours.open(ours.seal_begun(BEGUN, to="/")) is None
    assert ours.open_begun(ours.seal(PERSON)) is None
    assert sessions(root=b"s" * 32).open(ours.seal(PERSON)) is None
    assert sessions(issued_for="another client").open(ours.seal(PERSON)) is None


def test_a_session_of_a_code_knows_its_ticket() -> None:
    opened = sessions().open(sessions().seal(PERSON, ticket=TICKET))
    assert opened is not None
    assert opened.ticket == TICKET


def test_only_who_is_there_in_person_has_a_session() -> None:
    with pytest.raises(AssertionError):
        sessions().seal(replace(PERSON, console=False))


def test_two_boxes_cannot_be_put_together() -> None:
    ours = sessions()
    one, other = (base64.urlsafe_b64decode(ours.seal(PERSON) + "==") for _ in range(2))
    swapped = base64.urlsafe_b64encode(one[:16] + other[16:]).decode().rstrip("=")
    assert ours.open(swapped) is None


@given(st.data())
def test_no_changed_bit_goes_unseen(data: st.DataObject) -> None:
    ours = sessions()
    sealed = bytearray(base64.urlsafe_b64decode(ours.seal(PERSON) + "=="))
    place = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[place // 8] ^= 1 << place % 8
    assert ours.open(base64.urlsafe_b64encode(bytes(sealed)).decode().rstrip("=")) is None


@given(st.text(max_size=200))
def test_nothing_else_opens_at_all(text: str) -> None:
    assert sessions().open(text) is None
    assert sessions().open_begun(text) is None
