"""The words check catches a planted old name, a repeated class, a participle and a riddle, and lets plain code pass."""

from pathlib import Path

import pytest

from checks.words import Rules, check, find_banned_text

RULES = """
[retired_names]
door = "interface"
[retired_phrases]
'doors?' = "interface"
[participles]
received = "a value of the phase type Received"
[exceptions."src/old.py"]
door = "a wire name"
'doors?' = "a wire name"
"""
PLAIN = '"""Serve calls."""\n\n\ndef load_call(call_id: str) -> str:\n    """Load a call."""\n    return call_id\n'


def find_problems(root: Path, **files: str) -> list[str]:
    """Check a small tree, each keyword a module of `src`."""
    (root / "src").mkdir()
    (root / "words.toml").write_text(RULES)
    for name, text in {"old": "door = 1\n", **files}.items():
        (root / "src" / f"{name}.py").write_text(text)
    return list(check(root, sorted((root / "src").iterdir()), Rules.load(root / "words.toml")))


def test_plain_code_passes(tmp_path: Path) -> None:
    assert find_problems(tmp_path, calls=PLAIN) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class DoorKeeper:\n    pass\n", "src/calls.py:1: class DoorKeeper: 'door' is retired; use interface"),
        ("def told() -> None:\n    pass\n", "src/calls.py:1: function told is a bare participle"),
        ("waiting = 1\n", "src/calls.py:1: variable waiting is a bare participle"),
        ('"""What a server is asked."""\n', "src/calls.py:1: the docstring opens with 'What'"),
        ("# Calls come in through doors.\n", "src/calls.py:1: 'doors' is retired; use interface"),
    ],
)
def test_a_planted_riddle_is_found(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = find_problems(tmp_path, calls=text)
    assert found.startswith(problem)


def test_a_class_name_means_one_thing(tmp_path: Path) -> None:
    (found,) = find_problems(tmp_path, calls="class Call:\n    pass\n", runs="class Call:\n    pass\n")
    assert "class Call stands already in src/calls.py:1" in found


def test_an_exception_that_is_not_needed_is_refused(tmp_path: Path) -> None:
    found = find_problems(tmp_path, old=PLAIN)
    assert "exception 'door' for src/old.py is not needed" in found[0]


@pytest.mark.parametrize(
    "line",
    [
        "see https://py" + "pi.org/project/x",
        "tarball from registry.npm" + "js.org",
        "open('/wor" + "k/main/x')",
        "# TO" + "DO later",
    ],
)
def test_text_that_must_not_be_published_is_found(line: str) -> None:
    assert list(find_banned_text(line)) != []


@pytest.mark.parametrize("line", ["# TO" + "DO(#12) later", "docs/work/plan.md", "the npm ecosystem"])
def test_harmless_text_is_left_alone(line: str) -> None:
    assert list(find_banned_text(line)) == []
