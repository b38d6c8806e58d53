"""The confirmed copy of a project: it changes as a whole when it is confirmed, and not before, whatever is killed."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.separate_user import working_copy
from deputize.interfaces.cli.local.separate_user.project_snapshot import ProjectFile
from deputize.interfaces.cli.local.separate_user.working_copy import WorkingCopy
from deputize.store.private_file import replace_file

_FILES = st.builds(ProjectFile, content=st.binary(max_size=3), is_executable=st.booleans())
# Some paths exclude each other: what was a file becomes a folder.
_SNAPSHOTS = st.dictionaries(st.sampled_from(["a.py", "b.cedar", "c/d.py", "c/e.toml", "f", "g/h/i"]), _FILES)
_OTHER_SNAPSHOTS = st.dictionaries(st.sampled_from(["a.py", "b.cedar/x", "c", "f/j.py", "g/h"]), _FILES)


class _Killed(BaseException):
    """The process ends here."""


def _list_files(copy: WorkingCopy) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(copy.files)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in copy.files.rglob("*")
        if path.is_file()
    }


def _describe(snapshot: dict[str, ProjectFile]) -> dict[str, tuple[bytes, bool]]:
    return {path: (file.content, file.is_executable) for path, file in snapshot.items()}


@settings(max_examples=30, deadline=None)
@given(old=_SNAPSHOTS, new=_SNAPSHOTS | _OTHER_SNAPSHOTS, kill_after=st.integers(0, 12))
def test_a_takeover_that_is_killed_anywhere_is_complete_or_never_happened(
    old: dict[str, ProjectFile], new: dict[str, ProjectFile], kill_after: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        copy = WorkingCopy(Path(folder))
        copy.stage(old)
        copy.confirm()
        assert _list_files(copy) == _describe(old)

        written = 0

        def write_until_killed(path: Path, data: bytes, *, mode: int = 0o600) -> None:
            nonlocal written
            written += 1
            if written > kill_after:
                raise _Killed
            replace_file(path, data, mode=mode)

        monkeypatch.setattr(working_copy, "replace_file", write_until_killed)
        is_confirmed = False
        try:
            copy.stage(new)
            is_confirmed = True
            copy.confirm()
        except _Killed:
            pass
        monkeypatch.undo()

        next_start = WorkingCopy(Path(folder))
        next_start.recover()
        expected = new if is_confirmed else old
        assert _list_files(next_start) == _describe(expected)
        assert next_start.load_digests() == {path: file.digest for path, file in expected.items()}
        assert {path.name for path in Path(folder).iterdir()} <= {"files", "confirmed.json"}


def test_what_tools_wrote_stays_and_what_was_discarded_changes_nothing(tmp_path: Path) -> None:
    copy = WorkingCopy(tmp_path)
    copy.stage({"tool.py": ProjectFile(content=b"1")})
    copy.confirm()
    (copy.files / "notes.txt").write_text("mine")

    copy.stage({"tool.py": ProjectFile(content=b"2")})
    copy.discard()
    assert copy.read_file("tool.py") == b"1"

    copy.stage({"tool.py": ProjectFile(content=b"2")})
    copy.confirm()
    assert (copy.read_file("tool.py"), copy.read_file("notes.txt")) == (b"2", b"mine")


def test_a_takeover_that_was_being_deleted_is_deleted(tmp_path: Path) -> None:
    copy = WorkingCopy(tmp_path)
    copy.stage({"tool.py": ProjectFile(content=b"1")})
    copy.confirm()
    (tmp_path / "takeover" / "files").mkdir(parents=True)
    copy.recover()
    assert not (tmp_path / "takeover").exists()
    assert copy.read_file("tool.py") == b"1"


def test_damaged_digests_are_never_taken_for_a_first_start(tmp_path: Path) -> None:
    (tmp_path / "confirmed.json").write_text("[")
    with pytest.raises(ConfigError, match=r"confirmed\.json is damaged"):
        WorkingCopy(tmp_path).load_digests()
