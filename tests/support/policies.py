"""Policies that tests put in force where they are about something else than policy."""

from pathlib import Path

from deputize.core.settings import PolicySettings
from deputize.govern.policy.policy_parser import PolicyFile

OPEN_POLICY = '@id("open")\n@reason("tests of other things")\npermit (principal, action, resource);\n'
OPEN_FILES = (PolicyFile(path="open.cedar", text=OPEN_POLICY),)


def open_policy(folder: Path) -> PolicySettings:
    """Everything is allowed that a token allows."""
    file = folder / "open.cedar"
    file.write_text(OPEN_POLICY)
    return PolicySettings(files=(str(file),))
