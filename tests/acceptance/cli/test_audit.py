"""Follow, search and export the audit from a shell, while calls are made in another one."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli.cli_process import BackgroundCommand, run_deputize

pytestmark = pytest.mark.nightly


@contextmanager
def calls_made(folder: Path) -> Iterator[None]:
    """Call two tools again and again: a tail shows what is written once it is connected."""
    stop = threading.Event()

    def make_calls() -> None:
        while not stop.is_set():
            run_deputize("call", "hello.remember", "text=milk", folder=folder)
            run_deputize("call", "hello.greet", "name=Ana", folder=folder)

    thread = threading.Thread(target=make_calls)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_tail_prints_a_line_for_each_entry_that_matches_until_ctrl_c(shop_project: Path) -> None:
    with BackgroundCommand("audit", "tail", "--tool", "hello.greet", folder=shop_project) as tail:
        with calls_made(shop_project):
            tail.wait_for_line("2")
            tail.wait_for_line("2")
        assert tail.interrupt(signal.SIGINT) == 0
    assert len(tail.lines) >= 2
    for line in tail.lines:
        time, caller, subject, decision, outcome, entry_id = line.split("  ")
        assert (time[-1], caller, subject, outcome) == ("Z", "developer", "hello.greet", "succeeded"), line
        assert decision.startswith("allow by "), line
        assert len(entry_id) == 36, line


def test_a_tail_prints_json_for_programs_and_each_entry_once(shop_project: Path) -> None:
    with BackgroundCommand("audit", "tail", "--kind", "intent", "--json", folder=shop_project) as tail:
        with calls_made(shop_project):
            tail.wait_for_line("{")
            tail.wait_for_line("{")
        assert tail.interrupt(signal.SIGINT) == 0
    entries: list[dict[str, Any]] = [json.loads(line) for line in tail.lines]
    assert {each["entry"]["kind"] for each in entries} == {"intent"}
    assert {each["entry"]["tool"] for each in entries} == {"hello.remember"}
    assert len({each["id"] for each in entries}) == len(entries)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--kind", "nothing"), "--kind nothing is unknown: use read, refusal, intent"),
        (("--decision", "maybe"), "--decision maybe is unknown: use allow, ask, deny."),
        (("--outcome", "fine"), "--outcome fine is unknown: use "),
    ],
)
def test_a_tail_of_what_does_not_exist_says_what_does(
    shop_project: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = run_deputize("audit", "tail", *words, folder=shop_project)
    assert (done.code, sentence in done.err) == (2, True), done.output


def test_a_tail_with_a_token_that_is_none_is_refused_and_ends(shop_project: Path) -> None:
    done = run_deputize("audit", "tail", "--token", "not-a-token", folder=shop_project)
    assert done.code == 1, done.output


def test_a_format_that_is_none_is_refused_with_all_that_are(shop_project: Path) -> None:
    refused = run_deputize("audit", "export", "--format", "xml", folder=shop_project)
    assert (refused.code, "'jsonl', 'csv', 'parquet'" in refused.err) == (2, True), refused.output


def test_an_export_as_parquet_has_what_json_lines_have(shop_project: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'deputize[parquet]'")
    run_deputize("call", "hello.greet", "name=Ana", folder=shop_project)
    refused = run_deputize("audit", "export", "--format", "parquet", folder=shop_project)
    assert (refused.code, "name it with --output" in refused.err) == (2, True), refused.output
    options = ("audit", "export", "--tool", "hello.greet", "--kind", "read", "--format")
    lines = run_deputize(*options, "jsonl", folder=shop_project).out.splitlines()
    done = run_deputize(*options, "parquet", "--output", "audit.parquet", folder=shop_project)
    assert (done.code, f"{len(lines):,} entr" in done.err) == (0, True), done.output
    rows = parquet.read_table(shop_project / "audit.parquet").to_pylist()
    assert [row["id"] for row in rows] == [json.loads(line)["id"] for line in lines]
    assert [row["entry"] for row in rows] == [line.encode().partition(b',"entry":')[2][:-1] for line in lines]
    assert {(row["user"], row["tool"]) for row in rows} == {("developer", "hello.greet")}
    assert not (shop_project / "audit.parquet.part").exists()
