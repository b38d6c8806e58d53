"""Since when calls are looked at is asked of the database as an id, whatever time someone names."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import make_first_id, parse_id_time_ms

_YEAR_1_MS, _YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000


@given(ms=st.integers(_YEAR_1_MS, _YEAR_10000_MS))
def test_every_time_somebody_can_write_has_a_first_id(ms: int) -> None:
    made = make_first_id(ms)

    assert str(UUID(made)) == made
    assert parse_id_time_ms(made) == max(ms, 0)
