"""Secrets and personal data are found by their shape, and ordinary text stays as it is."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deputize.core.canonical import canonicalize
from deputize.core.sensitive.checksums import is_card_number, is_iban, is_us_ssn
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.text import (
    MAX_DOCUMENT_LENGTH,
    MAX_TEXT_LENGTH,
    DocumentSearch,
    may_hold_sensitive_text,
    redact_error_text,
    redact_secrets,
    redact_text,
)
from tests.unit.core.sensitive.labelled_texts import CLEAN, PERSONAL_DATA, SECRETS

pytestmark = pytest.mark.requirement("GOV-6")

PIECES = [
    *(text for text, _, _ in PERSONAL_DATA), *(text for text, _ in SECRETS), *CLEAN,
    " ", "\n", "-", ":", "@", "'", '"', "[", "]", "password=", "token ", "[redacted]", "[email]", "/", "+1", "é",
    "\ud800",
]  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=6).map("".join))


@pytest.mark.parametrize(("text", "mark", "value"), PERSONAL_DATA)
def test_personal_data_is_replaced_by_the_mark_of_its_kind(text: str, mark: str, value: str) -> None:
    visible_text = redact_text(text)
    assert mark in visible_text
    assert value not in visible_text


@pytest.mark.parametrize(("text", "value"), SECRETS)
def test_secrets_are_replaced_where_personal_data_may_be_shown_too(text: str, value: str) -> None:
    for visible_text in (redact_text(text), redact_secrets(text)):
        assert REDACTION_MARK in visible_text
        assert value not in visible_text


@pytest.mark.parametrize("text", CLEAN)
def test_ids_versions_times_digests_and_sizes_stay_readable(text: str) -> None:
    assert redact_text(text) == text


def test_recall_and_false_positives_of_the_labelled_texts() -> None:
    sentence = "The upstream answered: {} (attempt 2 of 3)"
    found = sum(value not in redact_text(sentence.format(text)) for text, _, value in PERSONAL_DATA)
    found_secrets = sum(value not in redact_text(sentence.format(text)) for text, value in SECRETS)
    false_positives = sum(redact_text(sentence.format(text)) != sentence.format(text) for text in CLEAN)
    assert (found, found_secrets, false_positives) == (len(PERSONAL_DATA), len(SECRETS), 0)


def test_a_field_that_may_show_personal_data_still_hides_secrets() -> None:
    text = "ana@example.org with password=hunter2"
    assert redact_secrets(text) == "ana@example.org with password=[redacted]"


@given(TEXTS)
@example("password=[redacted]")
@example("token ana@example.org")
@example("a@a.aaa@a.aa")
def test_redacting_twice_changes_nothing(text: str) -> None:
    for redact in (redact_text, redact_secrets, redact_error_text):
        visible_text = redact(text)
        assert redact(visible_text) == visible_text


@given(TEXTS, TEXTS)
def test_what_can_hold_nothing_by_its_bytes_is_not_changed(before: str, after: str) -> None:
    text = before + after
    if not may_hold_sensitive_text(text.encode(errors="replace")):
        for pattern_text in (redact_text(text), redact_secrets(text)):
            assert pattern_text == text


@pytest.mark.parametrize(("text", "value"), [(text, value) for text, _, value in PERSONAL_DATA] + list(SECRETS))
def test_the_first_look_misses_nothing(text: str, value: str) -> None:
    assert value in text
    assert may_hold_sensitive_text(text.encode())
    # In a document, a word can begin right after the letter of an escape.
    for before in ("\n", "\t", "\x0b", "\x08", '"', "\\"):
        assert may_hold_sensitive_text(canonicalize({"note": before + text}))


@pytest.mark.parametrize(
    "text",
    [
        "see\nshpat_0123456789abcdef0123456789abcdef", "Bob\n123-45-6789", "call\n01 23 45 67 89",
        "call\r0171 5550 1234",
        "Bearer\t0123456789abcdef", "basic\n0123456789abcdef", "phone number.\n\n\n\nis\n5551234567",
        "a\x0bkey-0123456789abcdef0123456789abcdef", "a\x1fsk_0123456789abcdef",
    ],
)  # fmt: skip
def test_the_first_look_reads_spaces_as_json_spells_them(text: str) -> None:
    assert redact_text(text) != text
    assert may_hold_sensitive_text(canonicalize({"note": text}))


@given(st.lists(st.one_of(TEXTS, st.sampled_from(["\n", "\t", "\r", "\x0c", "\x0b", "\x08", '"', "\\"])), max_size=6))
def test_what_can_hold_nothing_as_json_is_not_changed(parts: list[str]) -> None:
    text = "".join(parts).encode(errors="replace").decode()
    if not may_hold_sensitive_text(canonicalize({"note": text})):
        assert redact_text(text) == text


@pytest.mark.parametrize(
    "body",
    [
        b'{"amount":12,"id":"0190a5b2-7c3d-7e4f-8a9b-0c1d2e3f4a5b","note":"pay soon","when":"2026-11-17T09:57:36Z"}',
        b'{"result":{"items":[1,2,3],"state":"done","total":1024.5}}',
    ],
)
def test_the_first_look_lets_a_usual_document_pass(body: bytes) -> None:
    assert not may_hold_sensitive_text(body)


def test_what_is_past_the_limit_is_not_shown() -> None:
    text = "see ana@example.org " + "x " * MAX_TEXT_LENGTH + "hunter2"
    visible_text = redact_text(text)
    assert visible_text.startswith("[part of 32,795 characters] see [email] x x")
    assert visible_text.endswith(REDACTION_MARK)
    assert len(visible_text) <= MAX_TEXT_LENGTH + len(REDACTION_MARK)


def test_a_number_that_the_limit_cuts_is_not_shown() -> None:
    text = "a@b.example " + "x" * (MAX_TEXT_LENGTH - 22) + " 4111111111111111"
    assert "4111" not in redact_text(text)


def test_past_the_limit_of_a_document_only_texts_without_a_hint_are_shown() -> None:
    search, text = DocumentSearch(), "ana@example.org " + "x" * (MAX_TEXT_LENGTH - 16)
    visible_texts = [search.redact(text) for _ in range(MAX_DOCUMENT_LENGTH // MAX_TEXT_LENGTH + 1)]
    assert all(each.startswith("[email] xxx") for each in visible_texts[:-1])
    assert visible_texts[-1] == REDACTION_MARK
    assert search.redact("nothing to hide") == "nothing to hide"


@pytest.mark.parametrize(
    "part",
    [
        "password='", "token:", "/a", "'", "a.key", "-----BEGIN ", "://", " ", "\ud800", "a@a.co ", "a@", "a@a.",
        "é@é.", "4111111111111111 ", "4", "+1 415 555 2671 ", "1.2.3.4 ", "1.", "a:b:c:d:", ":", "Aa1" * 9 + " ", "Aa1",
        "phone 1", "DE89 3704 0044 0532 0130 00 ", "DE89", "[redacted]", "bearer aaaaaaaaa ", "eyJaaaaaaaa.", "ssn ",
        "(0",
    ],
)  # fmt: skip
def test_no_document_takes_long(part: str) -> None:
    """Search a megabyte: what is past the limits costs nothing, so the time has a bound."""
    text = part * (1_000_000 // len(part))
    search = DocumentSearch()
    started_at = time.thread_time()
    for place in range(0, len(text), 8_000):
        search.redact(text[place : place + 8_000])
    redact_error_text(text)
    may_hold_sensitive_text(text.encode(errors="replace"))
    assert time.thread_time() - started_at < 10


@pytest.mark.parametrize(
    ("digits", "is_valid"),
    [
        ("4111111111111111", True), ("4111111111111112", False), ("378282246310005", True), ("9111111111111111", False),
        ("0000000000000000", False), ("411111111111111", False),
    ],
)  # fmt: skip
def test_a_card_number_has_a_network_a_length_and_a_checksum(digits: str, is_valid: bool) -> None:
    assert is_card_number(digits) is is_valid


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("GB82WEST12345698765432", True), ("GB82WEST12345698765433", False), ("GB82WEST1234569876543", False),
        ("ZZ82WEST12345698765432", False), ("SA0380000000608010167519", True),
    ],
)  # fmt: skip
def test_an_iban_has_its_countrys_length_and_a_checksum(text: str, is_valid: bool) -> None:
    assert is_iban(text) is is_valid


@pytest.mark.parametrize(
    ("digits", "is_valid"), [("219099999", True), ("000123456", False), ("219000001", False), ("219010000", False)]
)
def test_a_social_security_number_has_no_empty_part(digits: str, is_valid: bool) -> None:
    assert is_us_ssn(digits) is is_valid
