"""One page is slow, and one is slowed down by many calls: the figures of the console miss their bars."""

from proofs.audit_search.sample_log import draw_entries
from proofs.console.experiment import list_paths, summarize_pages
from tests.support.proof_bars import list_missed_bars

PAGES = ("home", "calls", "agents")


def _list_missed(big: dict[str, list[float]], small: dict[str, list[float]]) -> set[str]:
    return list_missed_bars("console", summarize_pages(big, small))


def test_pages_as_quick_with_many_calls_as_with_few_miss_nothing() -> None:
    times = {page: [20.0, 21.0, 22.0] for page in PAGES}
    assert _list_missed(times, times) == set()


def test_one_slow_page_and_one_that_many_calls_slow_down_are_each_noticed() -> None:
    few = {page: [20.0, 21.0, 22.0] for page in PAGES}
    assert _list_missed({**few, "agents": [151.0, 152.0, 160.0]}, {**few, "agents": [150.0] * 3}) == {
        "slowest_page_p95_ms"
    }
    assert _list_missed({**few, "calls": [40.0, 41.0, 42.0]}, few) == {"of_few_calls"}


def test_the_pages_are_those_with_the_most_entries_and_all_filters() -> None:
    entries = draw_entries(1000, 1_790_000_000_000)
    paths = list_paths(entries)
    assert len(paths) >= 30
    assert len(set(paths.values())) == len(paths)
