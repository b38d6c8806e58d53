"""Policies as they lie in a project's folder."""

import glob
from collections.abc import Sequence
from pathlib import Path

from deputize.core.mistakes import Misconfigured
from deputize.govern.policy.rules import PolicyFile


def read_files(patterns: Sequence[str]) -> tuple[PolicyFile, ...]:
    """Every file the patterns name, in order, by the path a person would type here."""
    return tuple(_read(path) for path in _paths(patterns))


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read, and what to do about it."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8; save it as such"
    return f"{(error.strerror or type(error).__name__).lower()}; make it a file you may read"


def _paths(patterns: Sequence[str]) -> list[Path]:
    found: dict[Path, None] = {}
    for pattern in patterns:
        paths = sorted(Path(each) for each in glob.glob(pattern, recursive=True))
        if not paths:
            raise Misconfigured(
                f"policy.files names {pattern!r}, and there is no such file: write one, or leave it out."
            )
        found |= dict.fromkeys(path for path in paths if path.is_file())
    return list(found)


def _read(path: Path) -> PolicyFile:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"The policies in {path} cannot be read ({unreadable(error)}).") from None
    here = Path.cwd()
    return PolicyFile(path=str(path.relative_to(here) if path.is_relative_to(here) else path), text=text)
