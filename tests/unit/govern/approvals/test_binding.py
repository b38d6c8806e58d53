"""An approval is bound to one exact call: every change of the call changes the binding."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.govern.approvals.binding import BindingParts, compute_binding, list_changed_parts

pytestmark = pytest.mark.requirement("GOV-3")

KEY = b"k" * 32
BOUND = BindingParts(
    tenant="acme", call="0190b6a0-0000-7000-8000-000000000001", chain=("ana", "bot"), issuer="https://issuer.example",
    grants=("g1",), standing="s", tool="crm.delete_user@1.0.0", tool_digest="sha256:aa", code="sha256:cc",
    input=b'{"id":7}', account=("vault", "crm", ""), environment="production", preview=b"p", policy="sha256:bb",
    demands=b"[]", expires_at=datetime(2026, 1, 1, tzinfo=UTC),
)  # fmt: skip
OTHER: dict[str, Any] = {
    "tenant": "acme2", "call": "0190b6a0-0000-7000-8000-000000000002", "chain": ("ana", "bot", "bot2"), "issuer": "x",
    "grants": (), "standing": "t", "tool": "crm.delete_user@1.0.1", "tool_digest": "sha256:ab", "code": "",
    "input": b'{"id":8}', "account": ("vault", "crm2", ""), "environment": "staging", "preview": b"",
    "policy": "sha256:bc", "demands": b"[1]", "expires_at": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
}  # fmt: skip


def test_equal_calls_have_equal_bindings() -> None:
    there = replace(BOUND, expires_at=BOUND.expires_at.astimezone(timezone(timedelta(hours=2))))
    assert compute_binding(KEY, BOUND) == compute_binding(KEY, there)
    assert list_changed_parts(BOUND.compute_part_digests(), there) == []
    assert len(compute_binding(KEY, BOUND)) == 32


@pytest.mark.parametrize("name", [field.name for field in fields(BindingParts)])
def test_every_part_counts_and_is_named_when_it_changed(name: str) -> None:
    other = replace(BOUND, **{name: OTHER[name]})
    assert compute_binding(KEY, other) != compute_binding(KEY, BOUND)
    assert list_changed_parts(BOUND.compute_part_digests(), other) == [name]


def test_bindings_differ_between_tenant_keys() -> None:
    assert compute_binding(b"j" * 32, BOUND) != compute_binding(KEY, BOUND)


def test_unknown_and_missing_parts_count_as_changed() -> None:
    before = {**BOUND.compute_part_digests(), "region": "00"}
    del before["preview"]
    assert list_changed_parts(before, BOUND) == ["preview", "region"]


texts = st.text(max_size=4)
lists = st.lists(texts, max_size=3).map(tuple)


@given(texts, lists, lists, st.binary(max_size=4), texts, lists, lists, st.binary(max_size=4))
def test_different_calls_encode_to_different_bytes(
    call: str, chain: tuple[str, ...], grants: tuple[str, ...], sent: bytes,
    call2: str, chain2: tuple[str, ...], grants2: tuple[str, ...], sent2: bytes,
) -> None:  # fmt: skip
    one = replace(BOUND, call=call, chain=chain, grants=grants, input=sent)
    other = replace(BOUND, call=call2, chain=chain2, grants=grants2, input=sent2)
    assert (compute_binding(KEY, one) == compute_binding(KEY, other)) == (one == other)
