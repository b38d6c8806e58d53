"""What a person sees of a changed file: how much, which lines, and no line that is not there."""

import pytest

from deputize.interfaces.cli.render.file_changes import describe_difference


@pytest.mark.parametrize(
    ("old", "new", "title"),
    [
        (None, b"one\ntwo\n", "added a.py (+2 −0 lines)"),
        (b"one\ntwo\n", None, "removed a.py (+0 −2 lines)"),
        (b"one\ntwo\n", b"one\n2\n", "changed a.py (+1 −1 lines)"),
        (b"one\n", b"\xff\xfe", "changed a.py (4 → 2 bytes)"),
        (b"", b"x\n" * 6_000, "changed a.py (0 → 12,000 bytes)"),
        # The first characters of a line do not make it disappear.
        (b"-- old\n", b"++ new\n", "changed a.py (+1 −1 lines)"),
    ],
)
def test_the_size_of_a_difference_is_told(old: bytes | None, new: bytes | None, title: str) -> None:
    assert describe_difference("a.py", old, new)[0] == title


def test_changed_lines_are_shown_and_can_hide_nothing() -> None:
    _, lines = describe_difference("a.py", b"safe()\n", "\x1b[2Ksafe()\r\u202eevil()\u2028x\n".encode())
    assert lines == ["@@ -1 +1 @@", "-safe()", "+\\x1b[2Ksafe()\\r\\u202eevil()\\u2028x"]


def test_a_name_can_hide_nothing() -> None:
    assert describe_difference("a\u202e.py", None, b"")[0].startswith("added a\\u202e.py")
