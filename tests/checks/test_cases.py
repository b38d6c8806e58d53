"""A table checked in one test runs every case and names each one that fails."""

import pytest

from tests.support.cases import check_each


def test_every_case_runs_and_each_failure_is_named() -> None:
    numbers = list[int]()

    @check_each("number, wanted", [(1, 1), (2, 3), (4, 4), (5, 6)], label=lambda number, wanted: f"case-{number}")
    def compare(number: int, wanted: int, *, kept: list[int]) -> None:
        kept.append(number)
        assert number == wanted

    with pytest.raises(BaseExceptionGroup) as failed:
        compare(kept=numbers)

    assert numbers == [1, 2, 4, 5]
    assert "case-2, case-5" in str(failed.value)
    assert [each.__notes__ for each in failed.value.exceptions] == [["in the case case-2"], ["in the case case-5"]]


@pytest.fixture
def ten() -> int:
    return 10


@check_each("number", range(3), label=str)
async def test_an_async_test_keeps_its_fixtures(number: int, ten: int) -> None:
    assert number < ten
