"""Session cookies open as what they were sealed as, or not at all."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.govern.identity.oidc_login import LOGIN_SECONDS, PendingLogin
from deputize.govern.identity.sessions import SessionSealer
from tests.support.fake_issuer import NOW, ManualTime

pytestmark = pytest.mark.requirement("GOV-3")

REQUEST_ID = "01997f2e-3b1c-7a52-8d3e-2f60b1c4d5e6"
LOGIN_ATTEMPT = PendingLogin(state="s", nonce="n", verifier="v", at=NOW, again=True)
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
    operator=True,
)


def make_sessions(
    time: ManualTime | None = None, *, root: bytes = b"r" * 32, issued_for: str = "issuer"
) -> SessionSealer:
    return SessionSealer(root, (time or ManualTime()).clock, issued_for=issued_for)


def test_a_session_restores_the_caller() -> None:
    opened = make_sessions().open_session(make_sessions().seal_session(PERSON))
    assert opened is not None
    assert replace(opened.caller, decision_cache_key="") == PERSON
    assert opened.caller.decision_cache_key
    assert opened.approval_id is None


def test_only_the_session_of_a_code_makes_no_calls() -> None:
    ours = make_sessions()
    by_code = ours.open_session(ours.seal_session(PERSON, approval_id=REQUEST_ID))
    signed_in = ours.open_session(ours.seal_session(PERSON))
    assert by_code is not None
    assert signed_in is not None
    assert (by_code.caller.only_decides, signed_in.caller.only_decides) == (True, False)


def test_a_session_has_a_form_token_of_its_own() -> None:
    ours = make_sessions()
    one, other = ours.open_session(ours.seal_session(PERSON)), ours.open_session(ours.seal_session(PERSON))
    assert one is not None
    assert other is not None
    assert len(one.form_token) == 48
    assert one.form_token != other.form_token


def test_a_session_expires() -> None:
    time = ManualTime()
    sealed = make_sessions(time).seal_session(PERSON)
    time.seconds = 899
    assert make_sessions(time).open_session(sealed) is not None
    time.seconds = 900
    assert make_sessions(time).open_session(sealed) is None


def test_a_pending_login_expires_and_keeps_its_return_page() -> None:
    time = ManualTime()
    sealed = make_sessions(time).seal_login(LOGIN_ATTEMPT, return_to="/console/approvals")
    assert make_sessions(time).open_login(sealed) == (LOGIN_ATTEMPT, "/console/approvals")
    time.seconds = LOGIN_SECONDS
    assert make_sessions(time).open_login(sealed) is None


def test_sealed_kinds_are_not_interchangeable() -> None:
    ours = make_sessions()
    assert ours.open_session(ours.seal_login(LOGIN_ATTEMPT, return_to="/")) is None
    assert ours.open_login(ours.seal_session(PERSON)) is None
    assert make_sessions(root=b"s" * 32).open_session(ours.seal_session(PERSON)) is None
    assert make_sessions(issued_for="another client").open_session(ours.seal_session(PERSON)) is None


def test_a_code_session_knows_its_request() -> None:
    opened = make_sessions().open_session(make_sessions().seal_session(PERSON, approval_id=REQUEST_ID))
    assert opened is not None
    assert opened.approval_id == REQUEST_ID


def test_only_a_console_caller_has_a_session() -> None:
    with pytest.raises(AssertionError):
        make_sessions().seal_session(replace(PERSON, console=False))


def test_parts_of_two_sealed_sessions_cannot_be_combined() -> None:
    ours = make_sessions()
    one, other = (base64.urlsafe_b64decode(ours.seal_session(PERSON) + "==") for _ in range(2))
    swapped = base64.urlsafe_b64encode(one[:16] + other[16:]).decode().rstrip("=")
    assert ours.open_session(swapped) is None


@given(st.data())
def test_any_changed_bit_invalidates_the_cookie(data: st.DataObject) -> None:
    ours = make_sessions()
    sealed = bytearray(base64.urlsafe_b64decode(ours.seal_session(PERSON) + "=="))
    place = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[place // 8] ^= 1 << place % 8
    assert ours.open_session(base64.urlsafe_b64encode(bytes(sealed)).decode().rstrip("=")) is None


@given(st.text(max_size=200))
def test_arbitrary_texts_do_not_open(text: str) -> None:
    assert make_sessions().open_session(text) is None
    assert make_sessions().open_login(text) is None
