"""Documents are counted by their values, cheaply and without parsing them twice."""

import orjson
import pytest

from deputize.core.json_values import (
    count_values_in,
    has_more_values,
    has_too_many_values,
    is_large_document,
    is_large_value,
)


@pytest.mark.parametrize(
    ("value", "most", "expected"),
    [(1, 0, False), ([1, 2], 2, False), ([1, 2], 1, True), ({"a": [{"b": 1}]}, 3, False), ({"a": [{"b": 1}]}, 2, True)],
)
def test_values_are_counted_at_every_depth(value: object, most: int, expected: bool) -> None:
    assert has_more_values(value, most) is expected


def test_the_bytes_tell_how_many_values_there_can_be() -> None:
    assert count_values_in(b'{"a":[1,2,{}]}') >= 5
    assert count_values_in(b'"a,b"') == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0] * 1_900, False),
        ([0] * 2_001, True),
        ({"a": [[0] * 1_500, [0] * 1_500]}, True),
        ("a" * 131_000, False),
        (["a" * 100_000, "a" * 100_000], True),
        ({"a" * 140_000: 0}, True),
        (None, False),
    ],
)
def test_a_value_is_large_by_its_values_or_by_its_text(value: object, expected: bool) -> None:
    assert is_large_value(value) is expected
    assert is_large_document(orjson.dumps(value)) is expected


def test_the_text_alone_tells_that_there_are_too_many_values() -> None:
    assert has_too_many_values(b"[" + b",".join([b"{}"] * 300) + b"]", 100)
    assert has_too_many_values(b"{" + b",".join(b'"%d":"\\""' % each for each in range(300)) + b"}", 100)
    assert not has_too_many_values(b"[" + b",".join([b"{}"] * 100) + b"]", 100)


def test_punctuation_inside_of_texts_counts_as_nothing() -> None:
    text = orjson.dumps({"csv": 'a,b\\,[{",' * 1_000})
    assert not has_too_many_values(text, 100)
