"""Nothing outside of the folder is read or changed, no later version is lost, and every change can be taken back."""

import hashlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deputize import SemanticViolation, ToolConflict, ToolFailed, ToolPrecondition
from deputize.tools.files import changes as changes_module
from deputize.tools.files import reading
from deputize.tools.files.changes import Changes
from deputize.tools.files.folder import ABSENT, Folder, Place

pytestmark = pytest.mark.requirement("EXE-4")

SECRET = b"outside"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def name_change(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(SECRET)
    path = tmp_path / "root"
    (path / "src").mkdir(parents=True)
    (path / "src" / "main.py").write_bytes(b"print(1)\n")
    (path / "out").symlink_to(tmp_path / "secret")
    (path / "link").symlink_to(tmp_path / "secret" / "key")
    os.link(tmp_path / "secret" / "key", path / "hard")
    os.mkfifo(path / "pipe")
    return path


@pytest.fixture(params=[None, False], ids=["openat2", "by name"])
def folder(root: Path, request: pytest.FixtureRequest) -> Folder:
    return Folder(root, has_openat2=request.param)


@pytest.mark.parametrize("path", ["link", "hard", "pipe", "src", "out/key", "src/main.py/x", "none", "none/x"])
def test_what_is_no_plain_file_is_neither_read_nor_changed(folder: Folder, root: Path, path: str) -> None:
    changes, before = Changes(folder), list_tree(root)
    attempts: list[Callable[[], Any]] = [
        lambda: reading.read_page(folder, path, 0, 100),
        lambda: reading.compare_files(folder, "src/main.py", path),
        lambda: changes.put(name_change(1), path, b"x", digest(SECRET)),
        lambda: changes.remove(name_change(2), path, digest(SECRET)),
        lambda: changes.move(name_change(3), path, "taken", digest(SECRET)),
    ]
    for attempt in attempts:
        with pytest.raises((ToolPrecondition, ToolConflict)):
            attempt()
    assert list_tree(root) == before
    assert (root.parent / "secret" / "key").read_bytes() == SECRET


@pytest.mark.parametrize(
    "path",
    ["../secret/key", "/etc/passwd", "src/../../secret/key", "a//b", "src/", "./src", "a\\b", "a\nb", "a\0b", "",
     ".deputize/files", "src/.DEPUTIZE/x", "\udcff", "x" * 256, "/".join("a" * 70), "/proc/self/root/etc/passwd"],
)  # fmt: skip
def test_a_path_has_one_form(folder: Folder, path: str) -> None:
    with pytest.raises(SemanticViolation):
        reading.read_page(folder, path, 0, 100)


@pytest.mark.parametrize("path", [".git/hooks/post-checkout", ".git/config", "sub/.git", ".GIT/config", ".git./x"])
def test_a_repository_runs_nothing_that_was_written_here(folder: Folder, root: Path, path: str) -> None:
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").write_bytes(b"[core]\n")
    changes, before = Changes(folder), list_tree(root)
    attempts: list[Callable[[], Any]] = [
        lambda: changes.put(name_change(1), path, b"x", ABSENT),
        lambda: changes.remove(name_change(2), path, digest(b"[core]\n")),
        lambda: changes.move(name_change(3), "src/main.py", path, digest(b"print(1)\n")),
        lambda: reading.read_page(folder, path, 0, 100),
    ]
    for attempt in attempts:
        with pytest.raises(SemanticViolation, match=r"\.git is out of reach"):
            attempt()
    assert list_tree(root) == before
    changes.put(name_change(4), ".gitignore", b"x", ABSENT)
    entries = {each.name: each.is_addressable for each in reading.list_entries(folder, ".", 0, 100).entries}
    assert (entries[".git"], entries[".gitignore"]) == (False, True)
    assert reading.search_names(folder, ".", "*config*", 10).paths == []


def test_folders_that_become_links_are_not_followed(folder: Folder, root: Path) -> None:
    with folder.open_parent("src/main.py") as place:
        (root / "src").rename(root / "moved")
        (root / "src").symlink_to(root.parent / "secret")
        with folder.open_file(place) as descriptor:
            assert os.read(descriptor, 100) == b"print(1)\n"
    with pytest.raises(ToolPrecondition, match="not below plain folders"):
        reading.read_page(folder, "src/key", 0, 100)


def test_long_and_binary_files_are_read_in_pages(folder: Folder, root: Path) -> None:
    (root / "text").write_text("äöü" * 10)
    (root / "binary").write_bytes(bytes(range(256)))
    text, offset = "", 0
    while True:
        page = reading.read_page(folder, "text", offset, 5)
        assert (page.encoding, page.sha256) == ("utf-8", digest(("äöü" * 10).encode()))
        text += page.content
        if page.next_offset is None:
            break
        offset = page.next_offset
    assert text == "äöü" * 10
    page = reading.read_page(folder, "binary", 0, 16)
    assert (page.encoding, page.content, page.next_offset) == ("base64", "AAECAwQFBgcICQoLDA0ODw==", 16)
    with (root / "huge").open("wb") as file:
        file.truncate(3 * 2**30)
    page = reading.read_page(folder, "huge", 2**31, 4)
    assert (page.sha256, page.size, page.content) == (None, 3 * 2**30, "AAAAAA==")
    with pytest.raises(ToolPrecondition, match="too many to change"):
        Changes(folder).remove(name_change(1), "huge", digest(b""))


def test_odd_names_are_shown_escaped_and_what_is_kept_is_not_shown(folder: Folder, root: Path) -> None:
    for name in (b"line\nbreak", b"\xff\xfe", b"right\xe2\x80\xae"):
        (Path(os.fsdecode(os.fsencode(root) + b"/" + name))).write_text("TODO")
    Changes(folder).put(name_change(1), "new", b"x", ABSENT)
    listing = reading.list_entries(folder, ".", 0, 100)
    kinds = {each.name: (each.kind, each.is_addressable) for each in listing.entries}
    assert kinds["line\\nbreak"] == ("file", False)
    assert kinds["\\\\xff\\\\xfe"] == ("file", False)
    assert (kinds["out"], kinds["pipe"]) == (("symlink", True), ("other", True))
    assert not any("deputize" in name for name in kinds)
    assert [each.path for each in reading.search_lines(folder, ".", "TODO", "*", 10, ignores_case=False).lines] == [
        "right\u202e"
    ]
    assert reading.read_metadata(folder, "link").kind == "symlink"


def test_searches_stay_below_the_folder_and_within_their_limits(folder: Folder, root: Path) -> None:
    (root / "src" / "more.py").write_text("a = 1\nb = 22\nend\n")
    found = reading.search_names(folder, ".", "*.py", 10)
    assert (found.paths, found.is_cut) == (["src/main.py", "src/more.py"], False)
    assert reading.search_names(folder, "src", "src/m*", 1) == reading.FoundPaths(paths=["src/main.py"], is_cut=True)
    lines = reading.search_lines(folder, ".", r"^[A-Z] = \d+$", "*.py", 10, ignores_case=True)
    assert [(each.path, each.line, each.text) for each in lines.lines] == [
        ("src/more.py", 1, "a = 1"), ("src/more.py", 2, "b = 22"),
    ]  # fmt: skip
    assert not reading.search_lines(folder, ".", "outside", "*", 10, ignores_case=False).lines
    with pytest.raises(SemanticViolation, match="the pattern"):
        reading.search_lines(folder, ".", "(?=x)", "*", 10, ignores_case=False)


def test_a_later_version_is_never_overwritten(folder: Folder, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, path = Changes(folder), root / "src" / "main.py"
    with pytest.raises(ToolConflict, match="not what you expected") as refusal:
        changes.put(name_change(1), "src/main.py", b"new", ABSENT)
    assert refusal.value.details["current_sha256"] == digest(b"print(1)\n")
    read_state = folder.read_state

    def read_then_lose(place: Place) -> Any:
        state = read_state(place)
        monkeypatch.setattr(folder, "read_state", read_state)
        (root / "other").write_bytes(b"somebody else's")
        (root / "other").rename(path)
        return state

    expected = digest(b"print(1)\n")
    attempts: list[Callable[[], Any]] = [
        lambda: changes.put(name_change(2), "src/main.py", b"new", expected),
        lambda: changes.remove(name_change(3), "src/main.py", expected),
        lambda: changes.move(name_change(4), "src/main.py", "elsewhere/x", expected),
    ]
    for attempt in attempts:
        path.write_bytes(b"print(1)\n")
        monkeypatch.setattr(folder, "read_state", read_then_lose)
        with pytest.raises(ToolConflict):
            attempt()
        assert path.read_bytes() == b"somebody else's"
    assert not (root / "elsewhere").exists()


def test_a_repeated_call_finds_what_it_did(folder: Folder, root: Path) -> None:
    changes, expected = Changes(folder), digest(b"print(1)\n")
    first = changes.put(name_change(1), "src/main.py", b"two", expected)
    moved = changes.move(name_change(2), "src/main.py", "a/b", digest(b"two"))
    assert changes.move(name_change(2), "src/main.py", "a/b", digest(b"two")) == moved
    removed = changes.remove(name_change(3), "a/b", digest(b"two"))
    assert changes.remove(name_change(3), "a/b", digest(b"two")) == removed
    assert changes.put(name_change(1), "src/main.py", b"two", expected) == first
    assert not (root / "src" / "main.py").exists()


def test_random_changes_are_taken_back_byte_for_byte(folder: Folder, root: Path) -> None:
    changes, random_source = Changes(folder), random.Random(7)
    (root / "src" / "main.py").chmod(0o755)
    number = 0
    for _ in range(30):
        trees, done = [list_tree(root)], []
        for _ in range(random_source.randrange(1, 6)):
            number += 1
            paths = make_random_change(changes, root, name_change(number), random_source)
            done.append((name_change(number), *paths))
            trees.append(list_tree(root))
        for change, path, to in reversed(done):
            number += 1
            assert list_tree(root) == trees.pop()
            changes.restore(name_change(number), path, to, change)
        assert list_tree(root) == trees.pop()


def make_random_change(changes: Changes, root: Path, change: str, random_source: random.Random) -> tuple[str, str]:
    names = ["a", "b/c", "b/d/e", "src/main.py"]
    path, to = random_source.sample(names, 2)
    current = (root / path).read_bytes() if (root / path).exists() else None
    kind = random_source.choice(["put", "remove", "move"])
    if current is None or kind == "put" or (kind == "move" and (root / to).exists()):
        content = random_source.choice([b"same", random_source.randbytes(20)])
        changes.put(change, path, content, ABSENT if current is None else digest(current))
    elif kind == "remove":
        changes.remove(change, path, digest(current))
    else:
        changes.move(change, path, to, digest(current))
        return path, to
    return path, path


def test_a_change_is_not_taken_back_after_a_later_one(folder: Folder, root: Path) -> None:
    changes = Changes(folder)
    changes.put(name_change(1), "src/main.py", b"two", digest(b"print(1)\n"))
    (root / "src" / "main.py").write_bytes(b"three")
    with pytest.raises(ToolConflict):
        changes.restore(name_change(2), "src/main.py", "src/main.py", name_change(1))
    for path, change in (("src/other.py", name_change(1)), ("src/main.py", f"../kept/{name_change(1)}")):
        with pytest.raises(ToolPrecondition, match="no change"):
            changes.restore(name_change(3), path, path, change)
    assert (root / "src" / "main.py").read_bytes() == b"three"


def test_taking_a_move_back_needs_both_of_its_paths(folder: Folder, root: Path) -> None:
    changes, expected = Changes(folder), digest(b"print(1)\n")
    changes.move(name_change(1), "src/main.py", "docs/x", expected)
    for path, to in (("src/main.py", "src/main.py"), ("docs/x", "docs/x"), ("docs/x", "src/main.py")):
        with pytest.raises(ToolPrecondition, match="no change"):
            changes.restore(name_change(2), path, to, name_change(1))
    restored = changes.restore(name_change(2), "src/main.py", "docs/x", name_change(1))
    assert (restored.path, restored.to) == ("docs/x", "src/main.py")
    changes.restore(name_change(3), "docs/x", "src/main.py", name_change(2))
    assert (root / "docs" / "x").read_bytes() == b"print(1)\n"


def test_only_the_last_changes_are_kept(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "MAX_KEPT_CHANGES", 3)
    changes, before = Changes(folder), ABSENT
    for number in range(6):
        before = changes.put(name_change(number), "a", str(number).encode(), before).after
    with changes.open_kept() as kept:
        assert sorted({name.partition(".")[0] for name in os.listdir(kept)}) == [name_change(n) for n in (3, 4, 5)]


KILLED = """
import os, signal, sys
from pathlib import Path
from deputize.tools.files import changes
from deputize.tools.files.folder import Folder
calls = 0
def die(frame, event, argument):
    global calls
    if event == "line" and frame.f_code.co_filename == changes.__file__:
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
    return die
worker = changes.Changes(Folder(Path(sys.argv[1])))
sys.settrace(die)
worker.put("%032x" % 1, "src/main.py", b"new", sys.argv[3])
"""


@pytest.mark.nightly
def test_a_write_that_is_killed_at_any_line_happened_or_did_not(root: Path) -> None:
    old, path, at_line, outcomes = b"print(1)\n", root / "src" / "main.py", 0, set()
    while True:
        at_line += 3
        command = [sys.executable, "-c", KILLED, str(root), str(at_line), digest(old)]
        ended = subprocess.run(command, check=False, env={**os.environ}).returncode
        content = path.read_bytes()
        assert content in (old, b"new")
        outcomes.add(content)
        changes = Changes(Folder(root))
        record = changes.put(name_change(1), "src/main.py", b"new", digest(old))
        assert (path.read_bytes(), record.before) == (b"new", digest(old))
        changes.restore(name_change(2), "src/main.py", "src/main.py", name_change(1))
        assert path.read_bytes() == old
        for kept in (root / ".deputize" / "files" / "kept").iterdir():
            kept.unlink()
        if ended != -signal.SIGKILL:
            break
    assert outcomes == {old, b"new"}


def test_a_folder_that_is_created_again_is_used(folder: Folder, root: Path) -> None:
    Changes(folder).put(name_change(1), "a", b"x", ABSENT)
    shutil.rmtree(root)
    with pytest.raises(ToolFailed, match="was deleted"):
        reading.read_page(folder, "a", 0, 10)
    (root / "b").mkdir(parents=True)
    Changes(folder).put(name_change(2), "b/c", b"new", ABSENT)
    assert (root / "b" / "c").read_bytes() == b"new"
    assert [each.name for each in reading.list_entries(folder, ".", 0, 10).entries] == ["b"]


def test_a_folder_of_links_for_what_is_kept_is_refused(folder: Folder, root: Path) -> None:
    (root / ".deputize").symlink_to(root.parent / "secret")
    with pytest.raises((ToolPrecondition, ToolFailed), match=r"\.deputize"):
        Changes(folder).put(name_change(1), "a", b"x", ABSENT)
    assert os.listdir(root.parent / "secret") == ["key"]


def test_differences_are_bounded() -> None:
    lines = [str(number) for number in range(5_000)]
    before = "\n".join(lines).encode()
    expected = ["--- a/a", "+++ /dev/null", "@@ -1 +0,0 @@", "-x", "\\ No newline at end of file"]
    assert reading.build_diff("a", "a", b"x", None).split("\n") == expected
    assert "more than" in reading.build_diff("a", "a", before, "\n".join(reversed(lines)).encode())
    lines[2_500] = "changed"
    diff = reading.build_diff("a", "a", before, "\n".join(lines).encode())
    assert diff.splitlines()[:3] == ["--- a/a", "+++ b/a", "@@ -2498,7 +2498,7 @@"]
    assert len(reading.build_diff("a", "a", None, b"\x01" * 3_000 + b"\n" * 1_900)) < 50_000


def list_tree(root: Path) -> dict[str, tuple[int, bytes]]:
    return dict(_iter_tree(root))


def _iter_tree(root: Path) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for path in sorted(root.rglob("*")):
        if ".deputize" not in path.parts:
            mode = path.lstat().st_mode
            yield str(path), (mode, path.read_bytes() if stat.S_ISREG(mode) else b"")
