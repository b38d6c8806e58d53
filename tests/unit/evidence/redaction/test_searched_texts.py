"""Texts that no schema marks are searched, and an author can let a field show personal data."""

from typing import Any

import orjson
import pytest

from deputize.evidence.redaction.plan import RedactionPlan

pytestmark = pytest.mark.requirement("GOV-6")

PLAIN: dict[str, Any] = {"type": "string"}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}
TEXTS_SCHEMA = {
    **CLOSED,
    "properties": {
        "note": PLAIN,
        "number": {"type": "integer"},
        "to": {**PLAIN, "x-sensitivity": "internal"},
        "list": {"type": "array", "x-sensitivity": "public", "items": PLAIN},
        "more": {"type": "object"},
    },
}


def test_texts_without_a_mark_are_searched() -> None:
    document = {
        "note": "ask ana@example.org",
        "number": 4111111111111111,
        "to": "ana@example.org, password=hunter2",
        "list": ["ana@example.org", "10.1.2.3"],
        "more": {"ana@example.org": 1, "[email]": 2, "plain": "order 7"},
    }
    redacted, paths = RedactionPlan(TEXTS_SCHEMA).apply(document, orjson.dumps(document))
    assert redacted == {
        "note": "ask [email]",
        "number": "[card]",
        "to": "ana@example.org, password=[redacted]",
        "list": ["ana@example.org", "10.1.2.3"],
        "more": {"[email]'": 1, "[email]": 2, "plain": "order 7"},
    }
    assert paths == ("/note", "/number", "/to", "/more/[email]'")


def test_a_document_without_a_hint_is_not_copied() -> None:
    document = {"note": "order 7 of 0190a5b2-7c3d-7e4f-8a9b-0c1d2e3f4a5b", "number": 12}
    schema = {**CLOSED, "properties": {"note": PLAIN, "number": {"type": "integer"}}}
    assert RedactionPlan(schema).apply(document, orjson.dumps(document))[0] is document
