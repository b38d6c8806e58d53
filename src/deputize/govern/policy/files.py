"""Read policy files from a project folder."""

import glob
from collections.abc import Sequence
from pathlib import Path

from deputize.core.config_error import ConfigError
from deputize.govern.policy.policy_parser import PolicyFile


def read_files(patterns: Sequence[str]) -> tuple[PolicyFile, ...]:
    """Read all files that match the patterns, in order, with paths relative to the current folder."""
    return tuple(_read_file(path) for path in _expand_patterns(patterns))


def describe_read_error(error: OSError | UnicodeDecodeError) -> str:
    """Describe why a file cannot be read, and how to fix it."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text at byte {error.start}; save it as UTF-8"
    return f"{(error.strerror or type(error).__name__).lower()}; check that it is a file you may read"


def _expand_patterns(patterns: Sequence[str]) -> list[Path]:
    unique_paths: dict[Path, None] = {}
    for pattern in patterns:
        paths = sorted(Path(each) for each in glob.glob(pattern, recursive=True))
        if not paths:
            raise ConfigError(
                f"policy.files lists {pattern!r}, but no such file exists: create it or remove the entry."
            )
        unique_paths |= dict.fromkeys(path for path in paths if path.is_file())
    return list(unique_paths)


def _read_file(path: Path) -> PolicyFile:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The policies in {path} cannot be read ({describe_read_error(error)}).") from None
    here = Path.cwd()
    return PolicyFile(path=str(path.relative_to(here) if path.is_relative_to(here) else path), text=text)
