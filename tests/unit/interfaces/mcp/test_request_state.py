"""What clients bring back, and what is remembered of them, is bound and bounded."""

import hmac
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.recent_calls import MAX_ENTRIES, RecentCalls
from deputize.interfaces.mcp.request_state import TTL_SECONDS, issue_request_state, verify_request_state

KEY = b"k" * 32
ANA = Caller(tenant="acme", user="ana")


LATER_CLOCK = Clock(epoch_ms=lambda: Clock().epoch_ms() + (TTL_SECONDS + 5) * 1000)


@dataclass(frozen=True)
class KeySigner:
    """Signs as a gateway does, with a key of the test's own."""

    key: bytes = KEY
    clock: Clock = field(default_factory=Clock)

    def sign(self, purpose: str, message: bytes) -> bytes:
        return hmac.digest(self.key, purpose.encode() + message, "sha256")


def _open_state(
    state: Any, *, signer: KeySigner | None = None, caller: Caller = ANA, tool: str = "t", **more: Any
) -> str:
    return verify_request_state(signer or KeySigner(), caller, tool, more.get("arguments", {"id": 1}), state)


def test_a_state_opens_for_who_got_it_and_for_what_they_asked() -> None:
    assert _open_state(issue_request_state(KeySigner(), ANA, "t", {"id": 1}, "c-1")) == "c-1"


@pytest.mark.parametrize(
    "other",
    [
        {"signer": KeySigner(b"x" * 32)},
        {"caller": Caller(tenant="acme", user="bo")},
        {"caller": Caller(tenant="other", user="ana")},
        {"caller": Caller(tenant="acme", user="ana", agents=("bot",))},
        {"caller": Caller(tenant="acme", user="ana", issuer="elsewhere")},
        {"tool": "u"},
        {"arguments": {"id": 2}},
        {"signer": KeySigner(clock=LATER_CLOCK)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_for_anything_else_it_does_not(other: dict[str, Any]) -> None:
    state = issue_request_state(KeySigner(), ANA, "t", {"id": 1}, "c-1")
    with pytest.raises(RpcError) as raised:
        _open_state(state, **other)
    assert raised.value.code == -32602


@given(st.one_of(st.text(), st.integers(), st.none(), st.binary().map(lambda raw: raw.hex())))
def test_what_was_never_given_out_is_refused(state: Any) -> None:
    with pytest.raises(RpcError):
        _open_state(state)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_state_with_one_bit_changed_is_refused(place: int, change: int) -> None:
    state = issue_request_state(KeySigner(), ANA, "t", {"id": 1}, "c-1")
    place %= len(state)
    spoilt = state[:place] + chr((ord(state[place]) ^ change) or 65) + state[place + 1 :]
    if spoilt != state:
        with pytest.raises(RpcError):
            _open_state(spoilt)


def test_recent_calls_are_bounded_and_can_be_removed() -> None:
    known = RecentCalls(Clock())
    assert [known.is_first_prompt("c"), known.is_first_prompt("c")] == [True, False]
    for number in range(MAX_ENTRIES + 10):
        known.add_pending(ANA, "t", {"n": number}, f"c-{number}")
    assert known.find_pending(ANA, "t", {"n": 0}) is None
    assert known.find_pending(ANA, "t", {"n": MAX_ENTRIES}) == f"c-{MAX_ENTRIES}"
    assert known.find_pending(Caller(tenant="acme", user="bo"), "t", {"n": MAX_ENTRIES}) is None
    known.forget_call("nobody's")
    known.forget_call(f"c-{MAX_ENTRIES}")
    assert known.find_pending(ANA, "t", {"n": MAX_ENTRIES}) is None
