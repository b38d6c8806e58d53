"""The snapshot of a project: everything that is in it, nothing that a link leads to, and never more than fits."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.separate_user import project_snapshot
from deputize.interfaces.cli.local.separate_user.project_snapshot import ProjectFile, compare_files, read_snapshot


def _read(folder: Path) -> dict[str, ProjectFile]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return read_snapshot(descriptor)
    finally:
        os.close(descriptor)


def _write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def test_it_has_every_file_but_none_of_what_programs_made(tmp_path: Path) -> None:
    _write(tmp_path, "deputize.toml", ".env", "tools/hello.py", "tools/__pycache__/hello.pyc", ".git/config")
    _write(
        tmp_path, ".deputize/token", "node_modules/x/index.js", "venv/pyvenv.cfg", "venv/bin/python", "a/b/c/data.bin"
    )
    (tmp_path / "run.sh").write_text("")
    (tmp_path / "run.sh").chmod(0o755)

    snapshot = _read(tmp_path)

    assert list(snapshot) == [".env", "a/b/c/data.bin", "deputize.toml", "run.sh", "tools/hello.py"]
    assert snapshot["tools/hello.py"].content == b"tools/hello.py"
    assert [path for path, file in snapshot.items() if file.is_executable] == ["run.sh"]


def _link_file(folder: Path) -> None:
    (folder / "tools.py").symlink_to("/etc/passwd")


def _link_folder(folder: Path) -> None:
    (folder / "policies").symlink_to("/etc")


def _make_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _hide_name(folder: Path) -> None:
    (folder / "tools\x1b[2K.py").write_text("")


def _nest(folder: Path) -> None:
    (folder / "/".join("d" * (project_snapshot.MAX_DEPTH + 1))).mkdir(parents=True)


@pytest.mark.parametrize(
    ("trick", "sentence"),
    [
        (_link_file, "tools.py is a symbolic link, which is not followed"),
        (_link_folder, "policies is a symbolic link, which is not followed"),
        (_make_pipe, "pipe is neither a file nor a folder"),
        (_hide_name, r"tools\u001b[2K.py has unreadable characters"),
        (_nest, "is nested deeper than 20 folders"),
    ],
)
def test_a_trick_is_refused_by_name(tmp_path: Path, trick: Callable[[Path], None], sentence: str) -> None:
    trick(tmp_path)
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path)
    assert sentence in str(caught.value).replace("\\x1b", "\\u001b")


def _swap_for_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def _swap_for_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _swap_folder_for_link(path: Path) -> None:
    path.rmdir()
    path.symlink_to("/etc")


@pytest.mark.parametrize(
    ("make", "swap", "sentence"),
    [
        (Path.touch, _swap_for_link, "swapped cannot be read, or changed while it was read"),
        (Path.touch, _swap_for_pipe, "swapped is neither a file nor a folder"),
        (Path.mkdir, _swap_folder_for_link, "swapped cannot be read, or changed while it was read"),
    ],
)
def test_what_is_swapped_after_it_was_checked_is_neither_followed_nor_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    swap: Callable[[Path], None],
    sentence: str,
) -> None:
    make(tmp_path / "swapped")
    check = os.stat

    def check_then_swap(path: Any, **options: Any) -> os.stat_result:
        facts = check(path, **options)
        if path == "swapped":
            swap(tmp_path / "swapped")
        return facts

    monkeypatch.setattr(os, "stat", check_then_swap)
    with pytest.raises(ConfigError, match=sentence):
        _read(tmp_path)


@pytest.mark.parametrize(
    ("bound", "value", "sentence"),
    [
        ("MAX_FILES", 2, "more than 2 files"),
        ("MAX_FILE_BYTES", 3, "is larger than"),
        ("MAX_TOTAL_BYTES", 12, "together"),
        ("MAX_ENTRIES", 2, "more than 2 entries"),
    ],
)
def test_more_than_fits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, sentence: str
) -> None:
    _write(tmp_path, "one.py", "two.py", "three.py")
    monkeypatch.setattr(project_snapshot, bound, value)
    with pytest.raises(ConfigError, match=sentence):
        _read(tmp_path)


_FILES = st.builds(ProjectFile, content=st.binary(max_size=3), is_executable=st.booleans())
_SNAPSHOTS = st.dictionaries(st.sampled_from(["a.py", "b.cedar", "c/d.py", "c/e.toml"]), _FILES)


@given(old=_SNAPSHOTS, new=_SNAPSHOTS)
def test_every_difference_is_listed_once_and_nothing_else(
    old: dict[str, ProjectFile], new: dict[str, ProjectFile]
) -> None:
    changes = compare_files({path: file.digest for path, file in old.items()}, new)

    kinds = {change.path: change.kind for change in changes}
    assert len(kinds) == len(changes)
    assert set(kinds) == {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    for path, kind in kinds.items():
        assert kind == ("added" if path not in old else "removed" if path not in new else "changed")
