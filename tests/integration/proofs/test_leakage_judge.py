"""The judge of the leakage proof counts what was found by its marking, and plants what the engine should know."""

import random
from pathlib import Path

import pytest

from deputize.core.sensitive.text import redact_text
from proofs.leakage.channels import CHANNELS
from proofs.leakage.clean_documents import build_clean_documents, count_changed, count_suspected
from proofs.leakage.experiment import find_leaks, judge_leaks, plant_values
from proofs.leakage.planted_values import Marking, PlantedValues, find_secret_part
from tests.support.proof_bars import list_missed_bars

pytestmark = pytest.mark.nightly

PLANTS = plant_values(random.Random(1), 1100)
CLEAN = {
    "unexpected_answers": 0, "clean_documents": 500, "clean_documents_changed": 0.0, "second_opinion": 0,
    "clean_documents_suspected": 0.0,
}  # fmt: skip


def test_every_channel_gets_values_of_every_marking_and_none_twice() -> None:
    assert {(channel.name, value.marking) for channel, value in PLANTS} == {
        (channel.name, marking) for channel in CHANNELS for marking in channel.markings
    }
    assert len({find_secret_part(value) for _, value in PLANTS}) == len(PLANTS)


def test_nothing_found_meets_every_bar_and_each_kind_of_leak_misses_its_own() -> None:
    assert list_missed_bars("leakage", {**CLEAN, **judge_leaks(PLANTS, [])}) == set()
    for marking in (Marking.MARKED, Marking.NAMED, Marking.FORMAT):
        figures = judge_leaks(PLANTS, [f"3|{marking}|x|run|logs", f"3|{marking}|x|run|spans"])
        assert figures[f"{marking}_found"] == 1
        assert list_missed_bars("leakage", {**CLEAN, **figures}) == {f"{marking}_found"}
    personal = [f"{number}|personal|email|run|logs" for number in range(60)]
    assert list_missed_bars("leakage", {**CLEAN, **judge_leaks(PLANTS, personal)}) == {"personal_recall"}
    free = [f"{number}|free|words|run|logs" for number in range(60)]
    assert list_missed_bars("leakage", {**CLEAN, **judge_leaks(PLANTS, free)}) == set()


async def test_a_value_is_found_where_it_is_and_named_with_its_channel(tmp_path: Path) -> None:
    channel, value = PLANTS[0]
    (tmp_path / "one").write_text("nothing")
    (tmp_path / "two").write_text(f"before {find_secret_part(value)} after")
    leaks = await find_leaks(PLANTS[:50], {"logs": [tmp_path / "one", tmp_path / "two"], "spans": [tmp_path / "one"]})
    assert leaks == [f"0|{value.marking}|{value.kind}|{channel.name}|logs two"]


def test_the_engine_hides_every_known_format_and_all_structured_personal_data() -> None:
    values = PlantedValues(random.Random(2))
    for marking in (Marking.FORMAT, Marking.PERSONAL):
        made = [values.make(marking) for _ in range(300)]
        assert [each for each in made if find_secret_part(each) in redact_text(each.sentence)] == []


def test_clean_documents_stay_as_they_are() -> None:
    documents = build_clean_documents(random.Random(3), 300)
    assert len(documents) == 300
    assert count_changed(documents) <= 6
    assert count_suspected(documents) <= 3
