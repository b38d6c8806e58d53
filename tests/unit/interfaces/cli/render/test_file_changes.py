"""What a person sees of a changed file: how much, which lines, and no line that is not there."""

import time

import pytest

from deputize.interfaces.cli.render.file_changes import (
    PAGE_LINES,
    PagedLines,
    describe_difference,
    describe_differences,
)


@pytest.mark.parametrize(
    ("old", "new", "title"),
    [
        (None, b"one\ntwo\n", "added a.py (+2 −0 lines)"),
        (b"one\ntwo\n", None, "removed a.py (+0 −2 lines)"),
        (b"one\ntwo\n", b"one\n2\n", "changed a.py (+1 −1 lines)"),
        (b"one\n", b"\xff\xfe", "changed a.py (+1 −1 lines)"),
        (b"", b"x\n" * 6_000, "changed a.py (+6000 −0 lines)"),
        # The first characters of a line do not make it disappear.
        (b"-- old\n", b"++ new\n", "changed a.py (+1 −1 lines)"),
    ],
)
def test_the_size_of_a_difference_is_told(old: bytes | None, new: bytes | None, title: str) -> None:
    assert describe_difference("a.py", old, new)[0] == title


def test_changed_lines_are_shown_and_can_hide_nothing() -> None:
    _, lines = describe_difference("a.py", b"safe()\n", "\x1b[2Ksafe()\r\u202eevil()\u2028x\n".encode())
    assert list(lines) == ["@@ -1 +1 @@", "-safe()", "+\\x1b[2Ksafe()\\r\\u202eevil()\\u2028x"]


def test_a_name_can_hide_nothing() -> None:
    assert describe_difference("a\u202e.py", None, b"")[0].startswith("added a\\u202e.py")


def test_only_what_differs_is_shown_with_its_place() -> None:
    old = [f"line {number}" for number in range(1, 1001)]
    new = [*old[:500], "added", *old[500:]]
    old_text, new_text = ("".join(f"{line}\n" for line in lines).encode() for lines in (old, new))
    title, lines = describe_difference("a.cedar", old_text, new_text)
    assert title == "changed a.cedar (+1 −0 lines)"
    assert list(lines) == ["@@ -499,4 +499,5 @@", " line 499", " line 500", "+added", " line 501", " line 502"]


def test_lines_that_only_change_places_are_shown() -> None:
    _, lines = describe_difference("a.cedar", b"permit\nforbid\n", b"forbid\npermit\n")
    assert {each[0] for each in lines} == {"@", "+", "-", " "}


def test_repeated_lines_cost_no_time() -> None:
    old, new = b"a\nb\n" * 1200, b"b\na\n" * 1200 + b"x\n" + b"a\nb\n" * 50 + b"c\n"
    began = time.thread_time()
    title, lines = describe_difference("a.cedar", b"0\n" + old, b"1\n" + new)
    assert len(list(lines)) == 4905
    assert time.thread_time() - began < 2
    assert title == "changed a.cedar (+2503 −2401 lines)"


def test_no_change_of_bytes_is_without_a_line() -> None:
    assert list(describe_differences([("a.py", b"x\n", b"x")])) == [
        "changed a.py (+1 −1 lines)", "  @@ -1 +1 @@", "  -x", "  +x", "  ⟨no newline at the end⟩",
    ]  # fmt: skip
    assert "  +# caf\\udce9" in describe_differences([("a.py", b"# cafe\n", b"# caf\xe9\n")])
    long_line = "x" * 200 + "⟨…⟩permit"
    assert list(describe_differences([("a.cedar", None, f"{long_line}\n".encode())]))[2:] == [
        f"  +{'x' * 159}", f"  ⟨…⟩{'x' * 41}\\u27e8…\\u27e9permit",
    ]  # fmt: skip


def test_what_is_long_is_shown_to_its_last_line_on_pages() -> None:
    policy = b"//\n" * 2_500 + b"permit\n" + b"//\n" * 2_501
    pages = PagedLines(describe_differences([("a.cedar", None, policy)]))
    shown_lines: list[str] = []
    while pages.has_more:
        shown_lines += (page := pages.take_page())
        assert len(page) <= PAGE_LINES
    assert (len(shown_lines), shown_lines[2_502]) == (5_004, "  +permit")
