"""What a tool says of a call in words of its own shows none of what its schemas hide."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.evidence.redaction.free_text import FreeTextRedactor
from deputize.evidence.redaction.plan import RedactionPlan

pytestmark = [pytest.mark.requirement("GOV-6"), pytest.mark.requirement("GOV-4")]

INPUT = RedactionPlan(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "id": {"type": "integer"},
            "email": {"type": "string", "x-sensitivity": "pii"},
            "card": {"type": "object", "properties": {"number": {"type": "string"}}, "x-sensitivity": "secret"},
            "password": {"type": "string"},
        },
    }
)
OUTPUT = RedactionPlan({"type": "object", "properties": {"iban": {"type": "string", "x-sensitivity": "pii"}}})
ARGUMENTS = {"id": 7, "email": "ana@example.org", "card": {"number": "4111-1111"}, "password": "hunter2"}


def redact_value(value: Any, arguments: dict[str, Any] = ARGUMENTS) -> tuple[Any, list[str]]:
    paths: list[str] = []
    return FreeTextRedactor(INPUT, OUTPUT, arguments).redact(value, "", paths), paths


def test_names_of_either_schema_are_hidden_at_any_depth() -> None:
    shown, paths = redact_value({"row": [{"email": "other@x", "iban": "DE1", "plan": "pro"}], "api_key": "k"})
    assert shown == {
        "row": [{"email": REDACTION_MARK, "iban": REDACTION_MARK, "plan": "pro"}],
        "api_key": REDACTION_MARK,
    }
    assert paths == ["/row/0/email", "/row/0/iban", "/api_key"]


def test_hidden_values_of_the_arguments_are_hidden_under_any_name_and_inside_texts() -> None:
    shown, paths = redact_value(
        {"who": "users/ana@example.org", "n": ["4111-1111"], "ana@example.org": {"x/y": "hunter2!"}}
    )
    assert shown == {
        "who": f"users/{REDACTION_MARK}",
        "n": [REDACTION_MARK],
        REDACTION_MARK: {"x/y": f"{REDACTION_MARK}!"},
    }
    assert paths == ["/who", "/n/0", f"/{REDACTION_MARK}/x~1y"]


def test_what_is_hidden_by_name_stays_apart_from_what_hides_likewise() -> None:
    shown, _ = redact_value({"a hunter2": 1, f"a {REDACTION_MARK}": 2})
    assert sorted(shown.values()) == [1, 2]


def test_short_values_are_hidden_only_where_they_stand_alone() -> None:
    assert redact_value({"a": "abc", "b": "xabcx"}, {"password": "abc"})[0] == {"a": REDACTION_MARK, "b": "xabcx"}


def test_numbers_are_hidden_too_and_what_is_not_marked_is_left_as_it_is() -> None:
    assert redact_value({"pin": 1, "n": 4711, "t": True, "none": None, "f": 1.5}, {"password": 4711})[0] == {
        "pin": REDACTION_MARK, "n": REDACTION_MARK, "t": True, "none": None, "f": 1.5,
    }  # fmt: skip
    document = {"id": 7, "rows": [{"plan": "pro"}]}
    assert redact_value(document) == (document, [])


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(json_values, st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6, max_size=10), st.data())
def test_a_hidden_value_is_found_nowhere(document: Any, secret: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(["a", "b"]))
    said = {"a": document, "b": f"<{secret}>", secret: [secret], place: {"x": document, secret: secret}}
    shown, paths = redact_value(said, {"password": secret})
    assert paths
    assert secret.encode() not in orjson.dumps(shown)


def test_an_error_shows_no_sensitive_value_even_if_it_was_cut_inside_one() -> None:
    redactor, nothing_known = FreeTextRedactor(INPUT, OUTPUT, ARGUMENTS), KnownPaths({})
    assert redactor.redact_message("ana@example.org is unknown", nothing_known) == f"{REDACTION_MARK} is unknown"
    assert redactor.redact_message("unknown: ana@exam", nothing_known) == f"unknown: {REDACTION_MARK}"
    assert redactor.redact_message("no /home/ana for 4111-1111", nothing_known) == f"no [path] for {REDACTION_MARK}"
    assert redactor.redact_message("order 7 is gone", nothing_known) == "order 7 is gone"


def test_values_are_hidden_in_a_result_that_keeps_its_shape() -> None:
    redactor = FreeTextRedactor(INPUT, OUTPUT, {"card": {"number": 4111}, "password": "hunter2"})
    result = {"a": ["hunter2!", 4111, 4112, None, True], "hunter2": {"b": 1.5}, REDACTION_MARK: 2}
    shown = redactor.hide_values_in(result)
    assert shown == {
        "a": [f"{REDACTION_MARK}!", REDACTION_MARK, 4112, None, True],
        "hunter2": {"b": 1.5},
        REDACTION_MARK: 2,
    }
    assert redactor.hide_names_in(shown).keys() == {"a", REDACTION_MARK, f"{REDACTION_MARK}'"}


def test_without_sensitive_arguments_a_result_stays_the_same_object() -> None:
    redactor, result = FreeTextRedactor(INPUT, OUTPUT, {"id": 7}), {"id": 7}
    assert redactor.hide_names_in(redactor.hide_values_in(result)) is result
