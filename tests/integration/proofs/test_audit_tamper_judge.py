"""The judge of a log that was changed finds one planted fault of each category, in that category and in no other."""

import base64
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from proofs.audit_tamper.judge import (
    FaultPlace,
    LoggedCallEntry,
    TamperingResult,
    judge_entries,
    judge_tampering,
)
from proofs.audit_tamper.receipts import change_receipts
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

CALLS = 5_000
INTENT, UNKNOWN, SUCCESS = ("intent", None), ("outcome", "unknown"), ("outcome", "succeeded")
EXACT = FaultPlace(first=270, last=270)
LOOSE = FaultPlace(first=256, last=270, enclosed_first=200, enclosed_last=300)


def _make_entries(call_id: str, *kinds: tuple[str, str | None]) -> list[LoggedCallEntry]:
    return [LoggedCallEntry(call_id=call_id, kind=kind, outcome=outcome) for kind, outcome in kinds]


ATTEMPTS = {str(number): 1 for number in range(CALLS)}
ENTRIES = [each for call_id in ATTEMPTS for each in _make_entries(call_id, INTENT, SUCCESS)]
ENTRY_CASES: list[tuple[Mapping[str, int], Sequence[LoggedCallEntry], set[str]]] = [
    (ATTEMPTS, ENTRIES, set()),
    (ATTEMPTS, [*ENTRIES, *_make_entries("x", INTENT)], set()),
    (ATTEMPTS, ENTRIES[1:], {"entries_lost", "calls_with_another_history"}),
    (ATTEMPTS, ENTRIES[:-1], {"entries_lost", "calls_with_another_history"}),
    (ATTEMPTS, [*ENTRIES, *_make_entries("0", SUCCESS)], {"entries_repeated", "calls_with_another_history"}),
    (ATTEMPTS, [*ENTRIES, *_make_entries("0", INTENT)], {"calls_with_another_history"}),
    (ATTEMPTS, [*ENTRIES[2:], *_make_entries("0", SUCCESS, INTENT)], {"calls_with_another_history"}),
    ({**ATTEMPTS, "0": 2}, [*ENTRIES[2:], *_make_entries("0", INTENT, UNKNOWN, INTENT, SUCCESS)], set()),
    ({**ATTEMPTS, "0": 2}, [*ENTRIES[2:], *_make_entries("0", INTENT, INTENT, SUCCESS)], set()),
    (
        {**ATTEMPTS, "0": 2},
        [*ENTRIES[2:], *_make_entries("0", INTENT, SUCCESS, UNKNOWN)],
        {"calls_with_another_history"},
    ),
]


@pytest.mark.parametrize(("attempts", "entries", "missed"), ENTRY_CASES)
def test_a_log_is_compared_with_what_was_acknowledged(
    attempts: Mapping[str, int], entries: Sequence[LoggedCallEntry], missed: set[str]
) -> None:
    assert list_missed_bars("audit_tamper", judge_entries(attempts, entries)) == missed


RESULTS = [TamperingResult(kind=str(number % 15), expected=EXACT, found=(270, 270)) for number in range(500)]
RESULT_CASES: list[tuple[TamperingResult, set[str]]] = [
    (TamperingResult(kind="0", expected=EXACT, found=(270, 270)), set()),
    (TamperingResult(kind="0", expected=EXACT, found=None), {"undetected"}),
    (TamperingResult(kind="0", expected=EXACT, found=(270, 271)), {"at_another_place"}),
    (TamperingResult(kind="0", expected=EXACT, found=None, unlogged_entries=["a"]), {"at_another_place"}),
    (TamperingResult(kind="0", expected=LOOSE, found=(256, 256)), set()),
    (TamperingResult(kind="0", expected=LOOSE, found=(200, 256)), set()),
    (TamperingResult(kind="0", expected=LOOSE, found=(200, 255)), {"at_another_place"}),
    (TamperingResult(kind="0", expected=LOOSE, found=(199, 256)), {"at_another_place"}),
    (TamperingResult(kind="0", expected=LOOSE, found=(271, 300)), {"at_another_place"}),
    (TamperingResult(kind="0", expected="a", found=None, unlogged_entries=["a"]), set()),
    (TamperingResult(kind="0", expected="a", found=None, unlogged_entries=["b"]), {"at_another_place"}),
    (TamperingResult(kind="0", expected="a", found=None), {"undetected"}),
]


@pytest.mark.parametrize(("result", "missed"), RESULT_CASES)
def test_a_change_has_to_be_found_where_it_is(result: TamperingResult, missed: set[str]) -> None:
    assert list_missed_bars("audit_tamper", judge_tampering([result, *RESULTS[1:], RESULTS[0]])) == missed


def test_every_exact_bar_has_a_planted_fault() -> None:
    figures = judge_entries(ATTEMPTS, ENTRIES) | judge_tampering(RESULTS)
    planted = {name for _, _, missed in ENTRY_CASES for name in missed}
    planted |= {name for _, missed in RESULT_CASES for name in missed}
    assert planted == list_exact_bars("audit_tamper", among=figures)


def test_too_few_changes_calls_and_kinds_are_missed() -> None:
    assert list_missed_bars("audit_tamper", judge_tampering(RESULTS[:499])) == {"changes"}
    one_kind = [TamperingResult(kind="0", expected=EXACT, found=(270, 270))] * 500
    assert list_missed_bars("audit_tamper", judge_tampering(one_kind)) == {"kinds_of_change"}
    fewer = dict.fromkeys(list(ATTEMPTS)[1:], 1)
    assert list_missed_bars("audit_tamper", judge_entries(fewer, ENTRIES)) == {"acknowledged"}


def test_a_changed_receipt_differs_in_one_bit_of_its_entry(tmp_path: Path) -> None:
    folder, changed_folder = tmp_path / "receipts", tmp_path / "changed"
    folder.mkdir()
    text = f"c2sp.org/tlog-proof@v1\nextra {base64.b64encode(b'entry').decode()}\nindex 1\n\nlog\n2\nroot\n"
    (folder / "a.receipt").write_text(text)
    change_receipts(folder, changed_folder, random.Random(1))
    first, extra, rest = (changed_folder / "a.receipt").read_text().split("\n", 2)
    entry = base64.b64decode(extra.removeprefix("extra "))
    assert (first, rest) == ("c2sp.org/tlog-proof@v1", text.split("\n", 2)[2])
    assert sum((a ^ b).bit_count() for a, b in zip(entry, b"entry", strict=True)) == 1
