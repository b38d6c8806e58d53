"""Policies that tests put in force where they are about something else than policy."""

from pathlib import Path

from deputize.core.settings import Policy
from deputize.govern.policy.rules import PolicyFile

OPEN = '@id("open")\n@reason("tests of other things")\npermit (principal, action, resource);\n'
OPEN_FILES = (PolicyFile(path="open.cedar", text=OPEN),)


def open_policy(folder: Path) -> Policy:
    """Everything is allowed that a token allows."""
    file = folder / "open.cedar"
    file.write_text(OPEN)
    return Policy(files=(str(file),))
