"""Prepare a project that observes: its policies allow every call, and its servers' arguments are recorded.

Only a folder without a project becomes one, so that no policies are replaced by such that allow everything.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE, enter_project

OBSERVING_POLICY: Final = Path("policies/observe.cedar")
_STARTER = Path(__file__).parent / "starter"
_SETTINGS: Final = """\
# Written by deputize observe. All settings: docs/reference/settings.md

[policy]
files = ["policies/*.cedar"]    # observe.cedar allows every call; see deputize observe report
"""


def enter_observed_project() -> bool:
    """Enter the observing project in this folder or above, or make one here; return whether it was made.

    Raise `ConfigError` for a project with policies of its own.
    """
    if enter_project():
        if not OBSERVING_POLICY.is_file():
            raise ConfigError(
                f"{Path.cwd()} is a project with policies of its own, and observing allows every call: observe in a "
                f"folder without {SETTINGS_FILE}, or read what happened here with deputize observe report."
            )
        return False
    try:
        OBSERVING_POLICY.parent.mkdir(exist_ok=True)
        _write_observing_policy()
        if not Path(".gitignore").exists():
            shutil.copyfile(_STARTER / "gitignore", ".gitignore")
        # Last, as it makes the folder a project: after a failure before it, the same command can be run again.
        with Path(SETTINGS_FILE).open("x", encoding="utf-8") as file:
            file.write(_SETTINGS)
    except OSError as error:
        raise ConfigError(
            f"{Path.cwd()} cannot be written ({error.strerror}): choose another folder, or make this one writable."
        ) from None
    return True


def _write_observing_policy() -> None:
    text = (_STARTER / "observe.cedar").read_text(encoding="utf-8")
    try:
        with OBSERVING_POLICY.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        if OBSERVING_POLICY.read_bytes() != text.encode():
            raise ConfigError(
                f"{OBSERVING_POLICY} exists already and is not the policy that allows every call, so it was left as it "
                "is: move it away, or observe in another folder."
            ) from None


def read_new_policy(source: Path) -> tuple[Path, str]:
    """Enter the observing project, and read the policy that is to take over, with the path it gets there."""
    if not enter_project() or not OBSERVING_POLICY.is_file():
        raise ConfigError(
            f"This project does not observe: it has no {OBSERVING_POLICY}. Activate policies with deputize policy put."
        )
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        raise ConfigError(f"{source} cannot be read ({why}): name the policy file.") from None
    target = OBSERVING_POLICY.parent / source.name
    if target == OBSERVING_POLICY or source.suffix != ".cedar":
        raise ConfigError(f"{source.name} cannot take over: name a .cedar file other than {OBSERVING_POLICY.name}.")
    if target.exists() and target.resolve() != source.resolve():
        raise ConfigError(f"{target} exists already: rename one of the two files.")
    return target, text


def replace_observing_policy(source: Path, target: Path, text: str) -> None:
    """Put exactly the activated text in place of the policy that allows everything, so that the next start keeps it."""
    try:
        OBSERVING_POLICY.replace(OBSERVING_POLICY.with_suffix(".cedar.off"))
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
        if source.resolve() != target.resolve():
            source.unlink()
    except OSError as error:
        raise ConfigError(
            f"The policy is active, but {target} cannot be written ({error.strerror}): move {source} there, and "
            f"{OBSERVING_POLICY} away, before the next start."
        ) from None
