"""The ids of events: what was given out is understood again, and anything else means from the beginning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.states import State
from deputize.operations.calls.queries import EventCursor

pytestmark = pytest.mark.requirement("INV-4")


@given(epoch=st.integers(0, 10**8), state=st.sampled_from(State), seq=st.integers(0, 10**8))
def test_an_id_that_was_given_out_is_understood(epoch: int, state: State, seq: int) -> None:
    place = EventCursor(epoch, state, seq)
    assert EventCursor.parse(str(place)) == place


@given(st.one_of(st.none(), st.text(max_size=40)))
def test_any_other_text_means_from_the_beginning_or_a_harmless_place(text: str | None) -> None:
    place = EventCursor.parse(text)
    assert place == EventCursor() or (place.epoch >= 0 and place.seq >= 0)
