"""Documents are counted by their values, cheaply and without parsing them twice."""

import pytest

from deputize.core.json_values import count_values_in, has_more_values

pytestmark = pytest.mark.requirement("QUA-2")


@pytest.mark.parametrize(
    ("value", "most", "expected"),
    [(1, 0, False), ([1, 2], 2, False), ([1, 2], 1, True), ({"a": [{"b": 1}]}, 3, False), ({"a": [{"b": 1}]}, 2, True)],
)
def test_values_are_counted_at_every_depth(value: object, most: int, expected: bool) -> None:
    assert has_more_values(value, most) is expected


def test_the_bytes_tell_how_many_values_there_can_be() -> None:
    assert count_values_in(b'{"a":[1,2,{}]}') >= 5
    assert count_values_in(b'"a,b"') == 2
