"""Failing arguments become as simple as the failure allows."""

from typing import Any

from deputize.testing.shrinking import shrink_arguments


def test_what_does_not_matter_is_removed() -> None:
    arguments = {"count": 77, "name": "abcdef", "tags": [1, 2, 3], "nested": {"deep": [True, "x"]}}
    shrunk = shrink_arguments(arguments, is_valid=lambda _: True, is_failing=lambda each: each.get("count", 0) >= 3)
    assert shrunk == {"count": 3}


def test_arguments_stay_valid() -> None:
    def is_valid(each: dict[str, Any]) -> bool:
        return len(each.get("name", "")) >= 3

    shrunk = shrink_arguments({"name": "abcdefgh", "x": 1}, is_valid=is_valid, is_failing=lambda _: True)
    assert shrunk == {"name": "abc"}


def test_the_number_of_calls_is_bounded() -> None:
    tried: list[dict[str, Any]] = []
    arguments = {f"key_{number}": "text" * 50 for number in range(100)}

    def is_failing(each: dict[str, Any]) -> bool:
        tried.append(each)
        return False

    shrink_arguments(arguments, is_valid=lambda _: True, is_failing=is_failing)
    assert len(tried) == 60
