"""Compare servers of another client's file with those in the settings, and take over what changed.

What a person added to the settings is never removed: effects, scopes, further variables. Pins are renewed with the
command that they belong to.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.client_configs import ImportedServer
from deputize.interfaces.cli.local.project_file import SETTINGS_FILE
from deputize.interfaces.cli.local.settings_text import update_table

_PINS: Final = ("sha256", "files")
# What belongs to one way of reaching a server, and goes with it.
_SANDBOX_KEYS: Final = ("sandbox", "folders", "hosts", "private_hosts")
_PROGRAM_KEYS: Final = ("command", "folder", "env", "secret_env", *_SANDBOX_KEYS, *_PINS)
_HTTP_KEYS: Final = ("url", "header")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerChange:
    """Server whose file and settings differ: the values of both, by key; None for a key that is not there."""

    server: ImportedServer
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)


def compare_server(server: ImportedServer, settings: Mapping[str, Any]) -> ServerChange | None:
    """Compare a server with its table in the settings; None if nothing changed."""
    new_table = dict(server.table)
    if "env" in new_table:
        new_table["env"] = {**settings.get("env", {}), **new_table["env"]}
    is_same_command = settings.get("command") == new_table.get("command")
    after: dict[str, Any] = {
        key: value
        for key, value in new_table.items()
        # A file of a client never takes a program out of its sandbox.
        if settings.get(key) != value and key != "sandbox" and not (key in _PINS and is_same_command)
    }
    other_keys = _HTTP_KEYS if "command" in new_table else _PROGRAM_KEYS
    after |= dict.fromkeys(key for key in other_keys if key in settings and key not in new_table)
    if not is_same_command:
        after |= dict.fromkeys(key for key in _PINS if key in settings and key not in new_table)
    if not after:
        return None
    return ServerChange(server=server, before={key: settings.get(key) for key in after}, after=after)


def apply_changes(text: str, changes: list[ServerChange]) -> str:
    """Write the changes into the text of the settings; raise `ConfigError` if a table cannot be changed as text."""
    for change in changes:
        name = change.server.name
        document = tomllib.loads(text)
        for each in document["servers"]:
            if each.get("name") == name:
                each.update(change.after)
                for key in [key for key, value in change.after.items() if value is None]:
                    each.pop(key)
        new_text = update_table(text, "servers", name, change.after)
        try:
            is_exact = tomllib.loads(new_text) == document
        except tomllib.TOMLDecodeError:
            is_exact = False
        if not is_exact:
            raise ConfigError(
                f"The server {name} in {SETTINGS_FILE} is written in a way that cannot be changed safely: "
                "change it by hand, as the differences say."
            )
        text = new_text
    return text
