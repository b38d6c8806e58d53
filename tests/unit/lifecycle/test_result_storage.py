"""How long a call waits until its result is stored."""

import pytest

from deputize.lifecycle.result_storage import limit_store_seconds


@pytest.mark.requirement("RES-5")
@pytest.mark.parametrize(("remaining_seconds", "seconds"), [(-10, 5), (0, 5), (4, 5), (12, 12), (60, 60), (3600, 60)])
def test_a_result_is_stored_within_what_remains_of_the_calls_time(remaining_seconds: float, seconds: float) -> None:
    assert limit_store_seconds(remaining_seconds) == seconds
