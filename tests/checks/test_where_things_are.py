"""The page that tells new engineers where things are names files and folders that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "where-things-are.md"
_QUESTION = re.compile(r"^- \*\*(.+?\?)\*\*(.*?)(?=^- |^#|\Z)", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.\w+)?|[\w-]+\.toml)`")


def test_every_path_on_the_page_exists() -> None:
    paths = _PATH.findall(PAGE.read_text(encoding="utf-8"))

    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_question_is_answered_by_a_path() -> None:
    questions = _QUESTION.findall(PAGE.read_text(encoding="utf-8"))

    assert len(questions) >= 10
    assert [question for question, answer in questions if not _PATH.search(answer)] == []
