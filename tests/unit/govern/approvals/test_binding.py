"""A yes is about one exact call: whatever of it changes, the binding does."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.govern.approvals.binding import Bound, binding, changed

pytestmark = pytest.mark.requirement("GOV-3")

KEY = b"k" * 32
BOUND = Bound(
    tenant="acme", call="0190b6a0-0000-7000-8000-000000000001", chain=("ana", "bot"), issuer="https://issuer.example",
    grants=("g1",), standing="s", tool="crm.delete_user@1.0.0", tool_digest="sha256:aa", input=b'{"id":7}',
    account=("vault", "crm", ""), environment="production", preview=b"p", policy="sha256:bb", demands=b"[]",
    expires_at=datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip
OTHER: dict[str, Any] = {
    "tenant": "acme2", "call": "0190b6a0-0000-7000-8000-000000000002", "chain": ("ana", "bot", "bot2"), "issuer": "x",
    "grants": (), "standing": "t", "tool": "crm.delete_user@1.0.1", "tool_digest": "sha256:ab", "input": b'{"id":8}',
    "account": ("vault", "crm2", ""), "environment": "staging", "preview": b"", "policy": "sha256:bc",
    "demands": b"[1]", "expires_at": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
}  # fmt: skip


def test_the_same_call_is_bound_the_same_way() -> None:
    there = replace(BOUND, expires_at=BOUND.expires_at.astimezone(timezone(timedelta(hours=2))))
    assert binding(KEY, BOUND) == binding(KEY, there)
    assert changed(BOUND.parts(), there) == []
    assert len(binding(KEY, BOUND)) == 32


@pytest.mark.parametrize("name", [field.name for field in fields(Bound)])
def test_every_part_counts_and_is_named_when_it_changed(name: str) -> None:
    other = replace(BOUND, **{name: OTHER[name]})
    assert binding(KEY, other) != binding(KEY, BOUND)
    assert changed(BOUND.parts(), other) == [name]


def test_another_tenants_key_makes_another_binding() -> None:
    assert binding(b"j" * 32, BOUND) != binding(KEY, BOUND)


def test_parts_of_a_release_that_knew_others_count_as_changed() -> None:
    before = {**BOUND.parts(), "region": "00"}
    del before["preview"]
    assert changed(before, BOUND) == ["preview", "region"]


texts = st.text(max_size=4)
lists = st.lists(texts, max_size=3).map(tuple)


@given(texts, lists, lists, st.binary(max_size=4), texts, lists, lists, st.binary(max_size=4))
def test_no_two_calls_spell_the_same_bytes(
    call: str, chain: tuple[str, ...], grants: tuple[str, ...], sent: bytes,
    call2: str, chain2: tuple[str, ...], grants2: tuple[str, ...], sent2: bytes,
) -> None:  # fmt: skip
    one = replace(BOUND, call=call, chain=chain, grants=grants, input=sent)
    other = replace(BOUND, call=call2, chain=chain2, grants=grants2, input=sent2)
    assert (binding(KEY, one) == binding(KEY, other)) == (one == other)
