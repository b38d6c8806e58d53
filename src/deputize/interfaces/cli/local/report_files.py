"""Write the files of `deputize observe report`, and replace nothing but earlier pages."""

import os
import stat
from pathlib import Path
from typing import Final

from deputize.core.config_error import ConfigError
from deputize.store.private_file import replace_file, write_once

PAGE_START: Final = "<!doctype html>"


def require_targets(html: Path | None, write_policy: Path | None) -> None:
    """Refuse files that cannot be written, before the report is made, which takes long."""
    if write_policy is not None and os.path.lexists(write_policy):
        raise ConfigError(f"{write_policy} exists already: name another file, or move it away.")
    if html is not None:
        _require_page(html)
        if write_policy is not None and html.absolute() == write_policy.absolute():
            raise ConfigError("--html and --write-policy name the same file: name two.")
    for file in (html, write_policy):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{file} cannot be written: there is no folder {file.absolute().parent}.")


def _require_page(file: Path) -> None:
    """Refuse to replace anything but an earlier page."""
    try:
        if not os.path.lexists(file):
            return
        is_page = False
        if stat.S_ISREG(file.lstat().st_mode):
            with file.open("rb") as stream:
                is_page = stream.read(len(PAGE_START)) == PAGE_START.encode()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): choose another file.") from None
    if not is_page:
        raise ConfigError(f"{file} exists already and is no earlier report: name another file, or move it away.")


def write_page(file: Path, page: str) -> None:
    """Write the page for its owner alone: it has arguments of calls. Links are refused."""
    _require_page(file)
    try:
        replace_file(file, page.encode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): choose another file.") from None


def write_policy_file(file: Path, text: str) -> None:
    """Write a policy to a file that does not exist yet."""
    try:
        is_new = write_once(file, text.encode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): choose another file.") from None
    if not is_new:
        raise ConfigError(f"{file} exists already: name another file, or move it away.")
