"""Read, extend and write deputize.toml as text, so that its comments and order stay as they are."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.program_pins import render_toml_value
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE


def read_settings_text() -> str:
    """Read the settings of the project in this folder."""
    try:
        return Path(SETTINGS_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{SETTINGS_FILE} cannot be read ({error.strerror}): check its permissions.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{SETTINGS_FILE} is not UTF-8 text at byte {error.start}: save it as UTF-8.") from None


def render_table(name: str, table: Mapping[str, Any]) -> str:
    """Render one table of a list of tables."""
    rows = "".join(f"{key} = {render_toml_value(value)}\n" for key, value in table.items())
    return f"\n[[{name}]]\n{rows}"


def write_settings_text(old_text: str, new_text: str) -> str:
    """Write the settings in one step, and return the name of the backup with the old ones."""
    target = Path(SETTINGS_FILE)
    try:
        backup = next(
            name
            for number in range(1, 1000)
            if not (name := target.with_name(f"{SETTINGS_FILE}.{number}.bak")).exists()
        )
        write_private_file(backup, old_text)
        draft = target.with_name(f".{SETTINGS_FILE}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        write_private_file(draft, new_text)
        draft.replace(target)
    except OSError as error:
        raise ConfigError(
            f"{SETTINGS_FILE} cannot be written ({error.strerror}): check its permissions and its folder's."
        ) from None
    return backup.name


def write_private_file(path: Path, text: str) -> None:
    """Create a file that only its owner can read; never follow a link or reuse a file that is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def update_table(text: str, section: str, name: str, values: Mapping[str, Any]) -> str:
    """Set or remove keys of the table with this name in a list of tables; None removes a key.

    Only keys on a line of their own are found, so the caller compares what the result means with what it should.
    """
    lines, new_lines = text.splitlines(keepends=True), list[str]()
    headers = [number for number, line in enumerate(lines) if line.split("#")[0].strip() == f"[[{section}]]"]
    for start in headers:
        end = next((n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
        if any(_find_key(line) == "name" and f'"{name}"' in line for line in lines[start:end]):
            keys_in_place = {_find_key(line) for line in lines[start:end]}
            new_rows = [_render_row(key, each) for key, each in values.items() if key not in keys_in_place]
            last = max(n for n in range(start, end) if lines[n].strip())
            new_lines += lines[: start + 1]
            for line in lines[start + 1 : last + 1]:
                key = _find_key(line)
                new_lines.append(_render_row(key, values[key]) if key in values else line)
            return "".join([*new_lines, *new_rows, *lines[last + 1 :]])
    return text


def _find_key(line: str) -> str:
    return line.partition("=")[0].strip() if "=" in line else ""


def _render_row(key: str, value: Any) -> str:
    return "" if value is None else f"{key} = {render_toml_value(value)}\n"
