"""The screens in `screens/*.txt` are what the command line prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli.screens.screens import ALL, FOLDER

_WRITE = "python -m tests.acceptance.cli.screens --write"
_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.requirement("NEW-7")
@pytest.mark.nightly
def test_the_screens_are_what_is_printed(tmp_path: Path) -> None:
    # In a process of its own: commands configure logs for as long as a process lives.
    command = [sys.executable, "-m", "tests.acceptance.cli.screens", "--write", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    texts = {name: (tmp_path / f"{name}.txt").read_text(encoding="utf-8") for name in ALL}
    different = [
        f"{name}.txt is now:\n{text}"
        for name, text in texts.items()
        if not (FOLDER / f"{name}.txt").exists() or (FOLDER / f"{name}.txt").read_text(encoding="utf-8") != text
    ]
    assert not different, "\n".join([f"If this is meant, run {_WRITE}", *different])


def test_every_file_is_a_screen() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.txt")) == sorted(ALL)
