"""What the proof of the log's speed measured is held against its bars: too slow is missed, and only that."""

from pathlib import Path

import pytest

from proofs.audit_rate.append_rate import AppendRates
from proofs.audit_rate.experiment import describe_appends, describe_delays, describe_overhead
from proofs.audit_rate.local_log import LocalLog
from proofs.kit.load import PairedSamples, Sample
from tests.support.proof_bars import list_missed_bars

pytestmark = pytest.mark.nightly


def _make_samples(*rates: int) -> list[Sample]:
    return [Sample(requests=rate, seconds=1.0) for rate in rates]


@pytest.mark.parametrize(
    ("leaves", "entries", "shares"),
    [
        ((500, 600, 700), (900, 500, 100), (0.6, 0.5)),
        ((499, 100, 1000), (900, 600, 100), (0.499, 0.6)),
    ],
)
def test_appends_are_compared_with_copies_by_the_median(
    leaves: tuple[int, ...], entries: tuple[int, ...], shares: tuple[float, float]
) -> None:
    rates = AppendRates(
        leaves=_make_samples(*leaves),
        entries=_make_samples(*entries),
        copied_leaves=_make_samples(1000, 1000, 1000),
        copied_entries=_make_samples(1000, 1000, 1000),
    )
    figures = describe_appends(rates)
    assert (figures["append_of_copy"], figures["write_of_copy"]) == shares


def test_late_or_too_few_receipts_are_missed() -> None:
    assert list_missed_bars("audit_rate", describe_delays([1.5] * 200 + [9.0] * 100)) == set()
    assert list_missed_bars("audit_rate", describe_delays([1.5] * 150 + [1.6] * 151)) == {"receipt_p50_seconds"}
    assert list_missed_bars("audit_rate", describe_delays([0.1] * 299)) == {"receipts"}


@pytest.mark.parametrize("kind", ["write", "read"])
def test_slower_calls_are_missed(kind: str) -> None:
    plain = tuple(_make_samples(1000, 1000, 1000))
    for rates, missed in (((900, 910, 100), set()), ((899, 890, 1000), {f"{kind}_of_unlogged"})):
        paired = PairedSamples(a=tuple(_make_samples(*rates)), b=plain)
        assert list_missed_bars("audit_rate", describe_overhead(kind, paired)) == missed


@pytest.mark.parametrize("size", [1, 256, 999, 1000, 2001])
def test_a_log_in_files_is_trusted_until_a_letter_changes(size: int, tmp_path: Path) -> None:
    log = LocalLog(folder=tmp_path)
    log.write(size)
    verdict, _ = log.verify()
    assert (verdict.is_trusted, verdict.size) == (True, size)
    fault = log.find_changed_entry(size - 1)
    assert fault is not None
    assert (fault.first, fault.last) == (size - 1, size - 1)
