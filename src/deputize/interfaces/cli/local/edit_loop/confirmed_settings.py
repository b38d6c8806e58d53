"""Compare `deputize.toml` with what was confirmed last, and ask before `deputize dev` starts with other settings.

The confirmed content is kept in the state folder, with the rights of a secret, because settings may contain some. It is
written after a key was pressed, or when a first start was ready. Policies and contracts need no such file: what is
active in the database is what was confirmed last.
"""

import asyncio
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.edit_loop import edit_messages
from deputize.interfaces.cli.local.edit_loop.authority_changes import NEUTRAL_SETTINGS, compare_settings
from deputize.interfaces.cli.local.edit_loop.terminal_keys import Answer, TerminalKeys
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE, load_settings
from deputize.store.private_file import replace_file

_CONFIRMED_FILE: Final = "confirmed-settings.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class StartSettings:
    """The settings that a development gateway starts with."""

    settings: Settings
    # What `deputize.toml` has, if this start shall record it as confirmed once the gateway is ready.
    content_to_record: bytes | None = None


def choose_settings(folder: Path, *, is_confirmed: bool) -> StartSettings:
    """Choose between what `deputize.toml` says now and what was confirmed last; ask if that changes authority.

    A first start takes the files as they are. With `is_confirmed`, so does every start.
    """
    content = read_settings_file()
    settings = load_settings(content)
    old_content = _read_confirmed(folder)
    if old_content is None or is_confirmed:
        edit_messages.print_files_taken(is_first=old_content is None)
        return StartSettings(settings=settings, content_to_record=content)
    if content == old_content:
        return StartSettings(settings=settings)
    old_settings = _load_old_settings(old_content)
    changes = [] if old_settings is None else list(compare_settings(old_settings, settings))
    if old_settings is None or any(each.has_authority for each in changes):
        keys = TerminalKeys()
        is_asked = keys.begin()
        question = edit_messages.build_settings_question(changes, old_content, content)
        has_more = question.show_page(is_asked=is_asked)
        if is_asked:
            answer = _ask(keys, question if has_more else None)
        else:
            answer = "unavailable"
            if changes:
                edit_messages.print_settings_left()
        keys.close()
        if answer != "yes":
            return StartSettings(settings=_require_old_settings(old_settings))
        record_settings(folder, content)
    elif _list_edited_keys(old_content, content) <= NEUTRAL_SETTINGS:
        record_settings(folder, content)
    # Else the environment overrides what was edited: it is asked about at the first start at which it counts.
    return StartSettings(settings=settings)


def record_settings(folder: Path, content: bytes) -> None:
    """Record what `deputize.toml` had when it was confirmed; the next start compares with it."""
    replace_file(folder / _CONFIRMED_FILE, content)


def is_waiting_for_confirmation(folder: Path) -> bool:
    """Tell whether `deputize.toml` sets something else than what a person confirmed last."""
    confirmed_content = _read_confirmed(folder)
    if confirmed_content is None:
        return False
    try:
        return bool(_list_edited_keys(confirmed_content, read_settings_file()) - NEUTRAL_SETTINGS)
    except (ConfigError, ValueError):
        # What is wrong with the file is a finding of its own.
        return False


def _ask(keys: TerminalKeys, rest: edit_messages.EditQuestion | None) -> Answer:
    answer = asyncio.run(keys.ask(None if rest is None else rest.show_page))
    if answer != "yes":
        edit_messages.print_left(is_answered=answer == "no")
    return answer


def read_settings_file() -> bytes:
    """Read `deputize.toml` of the project."""
    try:
        return Path(SETTINGS_FILE).read_bytes()
    except OSError as error:
        raise ConfigError(f"{SETTINGS_FILE} cannot be read ({error.strerror}): check its permissions.") from None


def _read_confirmed(folder: Path) -> bytes | None:
    try:
        return (folder / _CONFIRMED_FILE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"The settings confirmed last in {folder / _CONFIRMED_FILE} cannot be read ({error.strerror}): check its "
            "permissions."
        ) from None


def _list_edited_keys(old: bytes, new: bytes) -> set[str]:
    """List the keys in which two files differ, whatever the environment overrides."""
    old_values, new_values = (dict(_flatten(tomllib.loads(content.decode()))) for content in (old, new))
    return {key for key in old_values | new_values if old_values.get(key) != new_values.get(key)}


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _load_old_settings(content: bytes) -> Settings | None:
    """Load the settings confirmed last; None if this release cannot read them any more."""
    with suppress(ConfigError):
        return load_settings(content)
    return None


def _require_old_settings(settings: Settings | None) -> Settings:
    if settings is None:
        raise ConfigError(
            f"{SETTINGS_FILE} changed, and the settings confirmed last cannot be used any more: start deputize dev in "
            "a terminal and press y, or read the file and start with --accept-changes."
        )
    return settings
