"""Add an entry to a client's file, keep a backup beside it, and take the entry back.

What was there before is restored byte for byte, unless the file was edited since: then only the entry is removed. No
record is needed for this: the file is unedited if adding its entry to the backup gives the file.
"""

import contextlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.client_setup.clients import ClientFormat
from deputize.interfaces.cli.local.client_setup.json_text import (
    parse_json_text,
    remove_json_member,
    set_json_member,
)
from deputize.interfaces.cli.local.client_setup.toml_text import parse_toml_text, remove_toml_table, set_toml_table
from deputize.store.private_file import replace_file

_MAX_FILE_BYTES = 32 * 1024 * 1024
_NEW_FILE_MODE = 0o600
_MAX_OLD_BACKUPS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryChange:
    """Change of a client's file: its backup, and whether anything had to be written."""

    file: Path
    backup: Path | None = None
    is_changed: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRemoval:
    """Removal of an entry: `entry` is what was there, None if nothing was."""

    file: Path
    entry: Any = None
    is_restored: bool = False
    backup: Path | None = None


class ClientFile:
    """File of a client with one entry of ours."""

    def __init__(self, client: ClientFormat, path: Path, name: str, *, inside: Path | None = None) -> None:
        """Open a file; `inside` is the folder that a link must not lead out of."""
        # A person may keep the file elsewhere, behind a link, which a replacement would destroy.
        target = path.resolve()
        if inside is not None and not target.is_relative_to(inside.resolve()):
            raise ConfigError(f"{path} is a link that leads out of the project: replace it by a file.")
        self.path = path
        self._target = target
        self._client = client
        self._name = name
        self._backup = target.with_name(f"{target.name}.before-deputize-{name}")

    def find_entry(self) -> Any:
        """Find the entry as it is now; None if there is none."""
        content = self._read(self._target)
        return None if content is None else self._find_entry(self._decode(content))

    def list_other_names(self) -> list[str]:
        """List the other servers of the file."""
        content = self._read(self._target)
        entries = {} if content is None else self._parse(self._decode(content)).get(self._client.section, {})
        return [name for name in entries if name != self._name]

    def add_entry(self, entry: Mapping[str, Any]) -> EntryChange:
        """Add or replace the entry, and keep what was there before as a backup."""
        content = self._read(self._target)
        if content is None:
            self._keep_old_backup()
            self._write(self._target, self._render("", entry).encode(), None)
            return EntryChange(file=self.path)
        text = self._decode(content)
        current = self._find_entry(text)
        backup_content = self._read(self._backup)
        if current == entry:
            return EntryChange(file=self.path, is_changed=False, backup=self._backup if backup_content else None)
        if current is None:
            base, backup_content = text, content
        elif self._is_unedited(text, current, backup_content):
            base = self._decode(backup_content or b"")
        else:
            base = text
        new_content = self._render(base, entry).encode()
        if backup_content is not None:
            self._write(self._backup, backup_content, self._target)
        self._write(self._target, new_content, self._target)
        return EntryChange(file=self.path, backup=self._backup if backup_content is not None else None)

    def _keep_old_backup(self) -> None:
        """Move a backup away that is not of this file; it may be all that is left of one that was deleted."""
        for number in range(1, _MAX_OLD_BACKUPS + 1):
            target = self._backup.with_name(f"{self._backup.name}.{number}")
            try:
                if not self._backup.exists():
                    return
                if not target.exists() or number == _MAX_OLD_BACKUPS:
                    self._backup.replace(target)
                    return
            except OSError as error:
                raise ConfigError(
                    f"{self._backup} cannot be moved to {target.name} ({error.strerror}): check the permissions."
                ) from None

    def remove_entry(self) -> EntryRemoval:
        """Restore what was there before; if the file was edited since, remove only the entry."""
        content = self._read(self._target)
        text = "" if content is None else self._decode(content)
        entry = self._find_entry(text) if content is not None else None
        if entry is None:
            return EntryRemoval(file=self.path)
        backup_content = self._read(self._backup)
        is_unedited = self._is_unedited(text, entry, backup_content)
        if is_unedited and backup_content is None:
            self._target.unlink()
            if self._client.project_file and "/" in self._client.project_file:
                # A folder for this file alone was made with it; one with other files stays.
                with contextlib.suppress(OSError):
                    self._target.parent.rmdir()
            return EntryRemoval(file=self.path, entry=entry, is_restored=True)
        if is_unedited and backup_content is not None:
            self._write(self._target, backup_content, self._target)
            self._backup.unlink()
            return EntryRemoval(file=self.path, entry=entry, is_restored=True)
        self._write(self._target, self._render(text, None).encode(), self._target)
        return EntryRemoval(file=self.path, entry=entry, backup=None if backup_content is None else self._backup)

    def _is_unedited(self, text: str, entry: Any, backup_content: bytes | None) -> bool:
        """Tell whether adding the entry to the backup, or to no file, gives exactly this text."""
        try:
            return isinstance(entry, dict) and self._render(self._decode(backup_content or b""), entry) == text
        except ConfigError:
            return False

    def _find_entry(self, text: str) -> Any:
        entries = self._parse(text).get(self._client.section, {})
        if not isinstance(entries, dict):
            raise self._refuse(f"its {self._client.section} is not a table of servers")
        return entries.get(self._name)

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            return parse_toml_text(text) if self._client.is_toml else parse_json_text(text)
        except ConfigError as error:
            raise self._refuse(str(error)) from None

    def _render(self, text: str, entry: Mapping[str, Any] | None) -> str:
        """Render the text with the entry or without it, and check that nothing else changes."""
        section, name, client = self._client.section, self._name, self._client
        try:
            if entry is None:
                new_text = (remove_toml_table if client.is_toml else remove_json_member)(text, section, name)
            else:
                new_text = (set_toml_table if client.is_toml else set_json_member)(text, section, name, entry)
            expected_document, new_document = self._parse(text), self._parse(new_text)
        except (ConfigError, IndexError, ValueError):
            raise self._refuse("it is written in a way that cannot be changed safely") from None
        entries = {key: each for key, each in expected_document.get(section, {}).items() if key != name}
        expected_document[section] = entries if entry is None else {**entries, name: dict(entry)}
        if new_document.get(section, {}) != expected_document[section] or {**new_document, section: {}} != {
            **expected_document,
            section: {},
        }:
            raise self._refuse("it is written in a way that cannot be changed safely")
        return new_text

    def _refuse(self, reason: str) -> ConfigError:
        return ConfigError(
            f"{self.path} was left as it is, because {reason}: correct it, or add the server by hand. "
            "deputize connect json prints the entry."
        )

    def _decode(self, content: bytes) -> str:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise self._refuse("it is not UTF-8 text") from None

    def _read(self, path: Path) -> bytes | None:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise self._refuse("it is not a file")
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise self._refuse(f"it is larger than {_MAX_FILE_BYTES // 1_048_576} MB")
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refuse(f"it cannot be read ({error.strerror})") from None

    def _write(self, path: Path, content: bytes, like: Path | None) -> None:
        """Write in one step, with the permissions of another file."""
        try:
            mode = _NEW_FILE_MODE if like is None else stat.S_IMODE(like.stat().st_mode)
            replace_file(path, content, mode=mode)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}): check the permissions.") from None
