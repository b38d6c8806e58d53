"""One fault of each kind is planted into the pages of a search: the judge names it, and its bar is missed."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from proofs.audit_search.judge import Names, Walk, add_findings, judge_walk
from proofs.audit_search.questions import READERS, answer, list_questions
from proofs.audit_search.sample_log import AGENT, PERSON, TENANTS, Drawn, draw_entries
from tests.support.proof_bars import list_exact_bars, list_missed_bars

COUNT = 12
ENTRIES = [
    Drawn(UUID(int=number), TENANTS[number == 0], "read", PERSON if number < 10 else "user-9", outcome="succeeded")
    for number in range(COUNT)
]
OWN = [UUID(int=number) for number in range(9, 0, -1)]
FOREIGN, ANOTHERS = UUID(int=0), UUID(int=11)
END = UUID(int=COUNT)


def _list_missed(ids: Sequence[UUID], *, cursor: UUID | None = None, names: Names = (PERSON, ())) -> set[str]:
    walk = Walk(start=END, found=[(each, names) for each in ids], cursor=cursor)
    drawn = {each.id: each for each in ENTRIES}
    findings = judge_walk(walk, OWN, drawn, lambda each: each.tenant == TENANTS[0] and each.user == PERSON)
    return list_missed_bars("audit_search", add_findings([findings]))


def test_pages_as_they_have_to_be_miss_nothing() -> None:
    assert _list_missed(OWN) == set()
    assert _list_missed(OWN[:4], cursor=OWN[3]) == set()


@pytest.mark.parametrize(
    ("ids", "missed"),
    [
        (OWN[:3] + OWN[4:], {"missing_entries"}),
        (OWN[:-1], {"missing_entries"}),
        ([*OWN, OWN[-1]], {"doubled_entries"}),
        ([OWN[1], OWN[0], *OWN[2:]], {"misordered_entries"}),
        ([*OWN, FOREIGN], {"foreign_entries", "unasked_entries"}),
        ([ANOTHERS, *OWN], {"foreign_entries", "unasked_entries", "misnamed_entries"}),
        ([UUID(int=99), *OWN], {"foreign_entries", "unasked_entries"}),
    ],
)
def test_each_fault_misses_its_bar(ids: list[UUID], missed: set[str]) -> None:
    assert _list_missed(ids) == missed


def test_a_wrong_name_misses_its_bar() -> None:
    assert _list_missed(OWN, names=("somebody", ())) == {"misnamed_entries"}
    assert _list_missed(OWN, names=(PERSON, (AGENT,))) == {"misnamed_entries"}


def test_every_exact_bar_of_pages_has_a_planted_fault() -> None:
    figures = {
        "missing_entries", "unasked_entries", "foreign_entries", "doubled_entries", "misordered_entries",
        "misnamed_entries",
    }  # fmt: skip
    assert list_exact_bars("audit_search", among=add_findings([])) == figures


def test_the_sample_has_an_answer_to_every_question_but_those_about_what_is_absent() -> None:
    entries = draw_entries(20_000, 1_790_000_000_000)
    own = [each for each in entries if each.tenant == TENANTS[0]]
    absent = {"unknown caller", "erased caller by name", "absent tool", "absent trace"}
    empty = {each.kind for each in list_questions(own, "e" * 64) if not answer(each, READERS[0], own)}
    assert empty == absent
    assert all(answer(list_questions(own, "e" * 64)[0], reader, own) for reader in READERS)
