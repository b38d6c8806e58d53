"""However an answer spells a credential, it is recognised; what does not quote it is left alone."""

import base64
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.canonical import canonicalize
from deputize.lifecycle.credentials.broker import derive_secret_forms

pytestmark = pytest.mark.requirement("GOV-7")

values = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=60)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _is_found(value: str, text: bytes) -> bool:
    return any(spelling in text for spelling in derive_secret_forms(value))


@given(values, texts, texts)
def test_it_is_found_in_json_wherever_it_stands(value: str, before: str, after: str) -> None:
    said = f"{before}{value}{after}"
    assert _is_found(value, canonicalize({"result": {"a": [said]}}))
    assert _is_found(value, canonicalize({"result": {said: 1}}))
    assert _is_found(value, orjson.dumps([said]))


@given(values, st.binary(max_size=7), st.binary(max_size=7))
def test_it_is_found_encoded(value: str, before: bytes, after: bytes) -> None:
    raw = value.encode()
    assert _is_found(value, base64.b64encode(before + raw + after))
    assert _is_found(value, base64.urlsafe_b64encode(before + raw + after))
    assert _is_found(value, (before + raw + after).hex().encode())
    assert _is_found(value, f"https://crm.example/?key={quote(value, safe='')}".encode())
    assert _is_found(value, f"https://crm.example/?key={quote_plus(value)}".encode())


@given(values)
def test_every_spelling_is_long_enough_not_to_be_met_by_chance(value: str) -> None:
    assert all(len(spelling) >= 8 for spelling in derive_secret_forms(value))


def test_other_answers_are_left_alone() -> None:
    assert not _is_found("s3cret-key-1", b'{"result":{"key":"s3cret-key-2","hash":"9f86d081884c7d65"}}')
