"""Fail when the subject of a new commit is not `area: imperative summary` in at most 72 characters.

New commits are those from the one that added this file. In a shallow clone the oldest commit seems to have added every
file, so that exactly the commits that are there are checked. Without a repository there is nothing to check.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULE_FILE = "checks/commits.py"
MAX_LENGTH = 72
EXAMPLE = "mcp: reject unknown elicitation modes"
# Several areas are separated by commas.
_FORM = re.compile(r"(?P<area>[a-z][a-z0-9_./-]*(?:, [a-z][a-z0-9_./-]*)*): (?P<verb>[a-z][a-z-]*)(,? \S.*)?")
_OTHER_FORMS = re.compile(r".*(?:[^s]s|ed|ing)")
# Imperatives that end as other forms of verbs do.
_IMPERATIVES = {
    "bring",
    "embed",
    "exceed",
    "feed",
    "focus",
    "need",
    "proceed",
    "seed",
    "shed",
    "speed",
    "spring",
    "string",
}


def find_subject_problems(subject: str) -> Iterator[str]:
    """Say what is wrong with one subject."""
    if len(subject) > MAX_LENGTH:
        yield f"has {len(subject)} characters; the limit is {MAX_LENGTH}"
    form = _FORM.fullmatch(subject)
    if form is None:
        yield f"is not `area: imperative summary` in lower case, such as `{EXAMPLE}`"
    elif _OTHER_FORMS.fullmatch(form["verb"]) and form["verb"] not in _IMPERATIVES:
        yield f"begins its summary with '{form['verb']}'; write the imperative, such as `{EXAMPLE}`"
    if subject.endswith("."):
        yield "ends with a full stop"


def find_problems(subjects: dict[str, str]) -> list[str]:
    """Name each commit whose subject breaks the rule."""
    return [
        f"{commit} {problem}: {subject}"
        for commit, subject in subjects.items()
        for problem in find_subject_problems(subject)
    ]


def list_new_subjects(root: Path) -> dict[str, str]:
    """Read the subjects of commits since the rule, the newest first; merges have the subjects git gives them."""
    first = _run_git(root, "log", "--diff-filter=A", "--format=%H", "--", RULE_FILE).split()
    if not first:
        return {}
    has_parent = bool(_run_git(root, "log", "-1", "--format=%P", first[-1]).strip())
    revisions = f"{first[-1]}^..HEAD" if has_parent else "HEAD"
    lines = _run_git(root, "log", "--no-merges", "--format=%h %s", revisions).splitlines()
    return {commit: subject for commit, _, subject in (line.partition(" ") for line in lines)}


def _run_git(root: Path, *words: str) -> str:
    # The clone may belong to another account than the one that checks it.
    command = ["git", "-c", "safe.directory=*", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    if not (ROOT / ".git").exists():
        print("commits: this is no clone, so there are none to check")
        return 0
    subjects = list_new_subjects(ROOT)
    problems = find_problems(subjects)
    for problem in problems:
        print(f"commits: {problem}")
    if not problems:
        print(f"commits: {len(subjects)} subjects since the rule")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
