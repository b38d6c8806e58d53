"""How the places of a worker are divided among tenants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.runs.engine import _compute_fair_share

pytestmark = pytest.mark.requirement("INV-9")


@given(st.integers(1, 500), st.integers(0, 600))
def test_everybody_gets_a_place_and_nobody_all_of_them(at_once: int, tenants: int) -> None:
    share = _compute_fair_share(at_once, tenants)
    assert 1 <= share <= at_once
    if at_once > 1:
        assert share < at_once


@given(st.integers(4, 500), st.integers(1, 500))
def test_those_who_wait_leave_room_for_one_who_comes(at_once: int, tenants: int) -> None:
    share = _compute_fair_share(at_once, tenants)
    if share > 1:
        assert at_once - share * tenants >= max(1, at_once // 4)


@given(st.integers(1, 500), st.integers(1, 500))
def test_more_tenants_never_get_more_each(at_once: int, tenants: int) -> None:
    assert _compute_fair_share(at_once, tenants + 1) <= _compute_fair_share(at_once, tenants)
