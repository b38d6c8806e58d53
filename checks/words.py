"""Fails when a tracked file holds something that must not be published.

A package registry's address would tie every checkout to one mirror, an absolute path of somebody's machine
means nothing to a reader, and a note of unfinished work without an issue number is a promise nobody keeps.
The patterns are spelt with a character class in them so that this file does not find itself.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BANNED = {
    "a package registry's address": re.compile(
        r"py[p]i\.(org|python)|python[h]osted\.org|npm[j]s\.(org|com)|yarn[p]kg\.com|-index[-]url",
        re.IGNORECASE,
    ),
    "a path of one machine": re.compile(r"(?<![\w.*-])/wor[k]/"),
    "unfinished work without an issue, write it as (#12)": re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b(?!\(#\d+\))"),
}


def tracked(root: Path) -> list[Path]:
    """List what git would publish from a checkout."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    return [root / name for name in listing.stdout.split("\0") if name]


def banned_words(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, what it is, and the words themselves."""
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in BANNED.items():
            if match := pattern.search(line):
                yield number, what, match[0]


def main() -> int:
    """Run the check over the tracked files of this checkout."""
    paths = [path for path in tracked(ROOT) if path.is_file()]
    failures = 0
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image or another binary has no words
        for number, what, words in banned_words(text):
            failures += 1
            print(f"words: {path.relative_to(ROOT)}:{number}: {what}: {words!r}", file=sys.stderr)
    if not failures:
        print(f"words: {len(paths)} tracked files are clean")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
