"""Test how much framing an answer may have."""

from deputize.execute.http_limits import FramingBudget

_DAY = 86_400


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stream_may_stay_open_for_weeks_and_say_little() -> None:
    clock = Clock()
    budget = FramingBudget(clock)
    for _ in range(14 * _DAY):
        clock.now += 1
        # A comment of a few bytes, in a chunk of its own.
        assert budget.spend(framing=6, content=9)


def test_lines_in_chunks_of_their_own_are_an_honest_answer() -> None:
    budget = FramingBudget(Clock())
    assert all(budget.spend(framing=6, content=40) for _ in range(1_000_000))


def test_chunks_of_one_byte_are_refused_however_much_content_came_before() -> None:
    budget = FramingBudget(Clock())
    assert budget.spend(framing=10, content=100_000_000)
    chunks = next(number for number in range(1_000_000) if not budget.spend(framing=5, content=1))
    assert chunks < 14_000
