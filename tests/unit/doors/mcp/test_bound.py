"""What clients bring back, and what is remembered of them, is bound and bounded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.doors.mcp.faces import RpcError
from deputize.doors.mcp.remembered import MOST, Remembered
from deputize.doors.mcp.state import SECONDS, opened, sealed

KEY = b"k" * 32
ANA = Caller(tenant="acme", user="ana")


LATER = Clock(epoch_ms=lambda: Clock().epoch_ms() + (SECONDS + 5) * 1000)


def _open(
    state: Any, *, key: bytes = KEY, clock: Clock | None = None, caller: Caller = ANA, tool: str = "t", **more: Any
) -> str:
    return opened(key, clock or Clock(), caller, tool, more.get("arguments", {"id": 1}), state)


def test_a_state_opens_for_who_got_it_and_for_what_they_asked() -> None:
    assert _open(sealed(KEY, Clock(), ANA, "t", {"id": 1}, "c-1")) == "c-1"


@pytest.mark.parametrize(
    "other",
    [
        {"key": b"x" * 32},
        {"caller": Caller(tenant="acme", user="bo")},
        {"caller": Caller(tenant="other", user="ana")},
        {"caller": Caller(tenant="acme", user="ana", agents=("bot",))},
        {"caller": Caller(tenant="acme", user="ana", issuer="elsewhere")},
        {"tool": "u"},
        {"arguments": {"id": 2}},
        {"clock": LATER},
    ],
    ids=lambda other: next(iter(other)),
)
def test_for_anything_else_it_does_not(other: dict[str, Any]) -> None:
    state = sealed(KEY, Clock(), ANA, "t", {"id": 1}, "c-1")
    with pytest.raises(RpcError) as raised:
        _open(state, **other)
    assert raised.value.code == -32602


@given(st.one_of(st.text(), st.integers(), st.none(), st.binary().map(lambda raw: raw.hex())))
def test_what_was_never_given_out_is_refused(state: Any) -> None:
    with pytest.raises(RpcError):
        _open(state)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_state_with_one_bit_changed_is_refused(place: int, change: int) -> None:
    state = sealed(KEY, Clock(), ANA, "t", {"id": 1}, "c-1")
    place %= len(state)
    spoilt = state[:place] + chr((ord(state[place]) ^ change) or 65) + state[place + 1 :]
    if spoilt != state:
        with pytest.raises(RpcError):
            _open(spoilt)


def test_what_is_remembered_is_bounded_and_forgotten_when_told() -> None:
    known = Remembered(Clock())
    assert [known.first_time("c"), known.first_time("c")] == [True, False]
    for number in range(MOST + 10):
        known.wait(ANA, "t", {"n": number}, f"c-{number}")
    assert known.waiting(ANA, "t", {"n": 0}) is None
    assert known.waiting(ANA, "t", {"n": MOST}) == f"c-{MOST}"
    assert known.waiting(Caller(tenant="acme", user="bo"), "t", {"n": MOST}) is None
    known.heard("nobody's")
    known.heard(f"c-{MOST}")
    assert known.waiting(ANA, "t", {"n": MOST}) is None
