"""The files that remember outside the database what was committed to it."""

import os
from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.store.restore_guard.record_files import LineageRecord, open_record_file, read_records

FIRST = LineageRecord(lineage="a", tenant="acme", entry_id="1")
SECOND = LineageRecord(lineage="a", tenant="acme", entry_id="2", epoch_sum=7)


def test_the_next_process_reads_the_newest_record(tmp_path: Path) -> None:
    file, _ = open_record_file(tmp_path / "lineage")
    file.write(FIRST)
    file.write(SECOND)
    file.close()
    again, others = open_record_file(tmp_path / "lineage")
    assert (again.previous, others) == (SECOND, [])
    again.write(FIRST)
    assert read_records(tmp_path / "lineage") == [FIRST]
    again.close()


def test_two_processes_never_write_the_same_file(tmp_path: Path) -> None:
    first, _ = open_record_file(tmp_path)
    first.write(FIRST)
    second, others = open_record_file(tmp_path)
    second.write(SECOND)
    assert second.path != first.path
    assert (second.previous, others) == (None, [FIRST])
    assert read_records(tmp_path) == [FIRST, SECOND]
    first.close()
    second.close()


def test_half_a_record_leaves_the_one_before(tmp_path: Path) -> None:
    file, _ = open_record_file(tmp_path)
    file.write(FIRST)
    file.write(SECOND)
    file.close()
    content = bytearray((tmp_path / "0").read_bytes())
    start = content.index(b'"entry_id":"2"')
    content[start : start + 20] = bytes(20)
    (tmp_path / "0").write_bytes(content)
    assert read_records(tmp_path) == [FIRST]


def test_a_damaged_file_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"x" * 2048)
    with pytest.raises(ConfigError, match=r"0 is damaged, .* then delete the file"):
        open_record_file(tmp_path)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    file, others = open_record_file(tmp_path)
    assert (file.previous, others) == (None, [])
    file.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"lineage_folder under \[database\]"):
        open_record_file(tmp_path / "lineage")


def test_a_file_in_place_of_the_folder_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "lineage").touch()
    with pytest.raises(ConfigError, match=r"lineage_folder under \[database\]"):
        open_record_file(tmp_path / "lineage")
