"""Checkpoints outside the database: whole files, the newest of each tenant, apart for each lineage."""

import base64
from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.store.restore_guard.checkpoint_files import CheckpointFiles, SavedCheckpoint, parse_saved_note

pytestmark = pytest.mark.requirement("GOV-5")
LINEAGE, LATER = "0b9d9a3e-0000-4000-8000-000000000001", "0b9d9a3e-0000-4000-8000-000000000002"


def make_checkpoint(tenant: str, size: int) -> SavedCheckpoint:
    root = base64.b64encode(size.to_bytes(32, "big")).decode()
    return parse_saved_note(tenant, f"host/log/{tenant}\n{size}\n{root}\n\n— host/log/{tenant} c2lnbmVk\n".encode())


def test_what_was_flushed_is_read_by_the_next_process(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path)
    for size in (1, 2, 3):
        files.put(LINEAGE, make_checkpoint("acme", size))
    files.put(LINEAGE, make_checkpoint("other", 9))
    files.flush()
    files.put(LATER, make_checkpoint("acme", 1))
    read = CheckpointFiles(tmp_path)
    assert read.get(LINEAGE, "acme") == make_checkpoint("acme", 3)
    assert {each.tenant: each.size for each in read.list_expected(LINEAGE)} == {"acme": 3, "other": 9}
    assert read.get(LATER, "acme") is None
    assert [path.name for path in sorted((tmp_path / "checkpoints" / LINEAGE).iterdir())] == ["acme", "other"]


def test_after_all_were_found_the_last_one_stands_for_them(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path)
    files.put(LINEAGE, make_checkpoint("acme", 5))
    files.put(LINEAGE, make_checkpoint("other", 1))
    files.confirm(LINEAGE)
    files.put(LINEAGE, make_checkpoint("acme", 6))
    assert [(each.tenant, each.size) for each in files.list_expected(LINEAGE)] == [("acme", 6)]
    assert files.list_expected(LATER) == []


def test_a_process_that_died_while_writing_leaves_the_file_from_before(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path)
    files.put(LINEAGE, make_checkpoint("acme", 5))
    files.flush()
    (tmp_path / "checkpoints" / LINEAGE / "acme.new").write_bytes(b"host/log/acme\n6")
    assert CheckpointFiles(tmp_path).get(LINEAGE, "acme") == make_checkpoint("acme", 5)


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    files = CheckpointFiles(tmp_path)
    blocker = tmp_path / "checkpoints"
    blocker.write_text("a file where the folder should be")
    files.put(LINEAGE, make_checkpoint("acme", 5))
    with pytest.raises(OSError, match="checkpoints"):
        files.flush()
    blocker.unlink()
    files.flush()
    assert CheckpointFiles(tmp_path).get(LINEAGE, "acme") == make_checkpoint("acme", 5)


@pytest.mark.parametrize("content", [b"", b"x", b"a\n1\nAAAA\n", b"a\nx\n" + b"A" * 43 + b"=\n", b"\xff\n1\n\n"])
def test_a_damaged_file_is_named_and_not_passed_over(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / LINEAGE
    folder.mkdir(parents=True)
    (folder / "acme").write_bytes(content)
    with pytest.raises(ConfigError, match="acme is damaged"):
        CheckpointFiles(tmp_path)
