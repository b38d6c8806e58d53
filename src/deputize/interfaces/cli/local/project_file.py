"""Find the project folder, load its settings with readable errors, and find its development gateway and token.

Commands run from any folder below the one that holds `deputize.toml`, as git does.
"""

import contextlib
import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.separate_user.protected_folder import (
    CLIENT_FOLDER,
    FILES_FOLDER,
    GATEWAY_FOLDER,
    locate_protected_folder,
)

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from deputize.core.settings import Settings

SETTINGS_FILE = "deputize.toml"
STATE_FOLDER = ".deputize"
TOKEN_FILE = "token"
AGENT_TOKEN_FILE = "agent-token"
# Written by `deputize demo`.
TOUR_FILE = "tour.json"
_VARIABLE_PREFIX = "DEPUTIZE_"


def enter_project(*, is_required: bool = False) -> bool:
    """Change to the nearest folder, here or above, that holds `deputize.toml`; return whether there is one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / SETTINGS_FILE).is_file():
            os.chdir(folder)
            return True
    if is_required:
        raise ConfigError(
            f"No {SETTINGS_FILE} in this folder or above: create a project with deputize init, then cd into it."
        )
    return False


def load_settings(content: bytes | None = None) -> "Settings":
    """Load the settings; raise `ConfigError` with one line for each error, naming its place and the fix.

    `content` takes the place of what the settings file has now.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from deputize.core.settings import Settings, use_file_values

    try:
        if content is None:
            return Settings()
        with use_file_values(tomllib.loads(content.decode())):
            return Settings()
    except ValidationError as error:
        raise ConfigError("\n".join(_explain_errors(error, Settings))) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{SETTINGS_FILE} is not valid TOML: {str(error).lower()}; check that line, and put text in quotes."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{SETTINGS_FILE} is not UTF-8 text at byte {error.start}: save it as UTF-8.") from None
    except SettingsError as error:
        raise ConfigError(_explain_invalid_variable(str(error))) from None
    except OSError as error:
        raise ConfigError(f"{SETTINGS_FILE} cannot be read ({error.strerror}): check its permissions.") from None


def _explain_invalid_variable(message: str) -> str:
    name = re.search(r'field "([^"]+)"', message)
    what = f"{_VARIABLE_PREFIX}{name[1].upper()}" if name else f"A {_VARIABLE_PREFIX}… variable"
    return (
        f"{what} is not valid JSON: set its fields one by one instead, for example {_VARIABLE_PREFIX}SERVER__PORT=7070."
    )


def _explain_errors(error: "ValidationError", settings: type["BaseModel"]) -> Iterator[str]:
    for issue in error.errors(include_url=False, include_input=True):
        path = tuple(part for part in issue["loc"])
        key = ".".join(str(part) for part in path)
        where = _find_source(path)
        if issue["type"] == "extra_forbidden":
            field_names = _list_fields(settings, path[:-1])
            matches = difflib.get_close_matches(str(path[-1]), field_names, n=1)
            table_name = ".".join(str(part) for part in path[:-1])
            fix = (
                f"did you mean {table_name + '.' if table_name else ''}{matches[0]}?"
                if matches
                else _list_choices(field_names)
            )
            yield f"{where}: {key} is not a setting; {fix}"
        elif issue["type"] == "missing":
            yield f"{where}: {key} is missing; add it."
        else:
            message = (issue["msg"][:1].lower() + issue["msg"][1:]).replace("valid tuple", "list")
            yield f"{where}: {key} is invalid: {message}{_quote_value(path, issue['input'])}; correct the value."


def _list_choices(names: Sequence[str]) -> str:
    return f"known settings: {', '.join(names)}." if names else "remove it."


def _quote_value(path: Sequence[Any], value: Any) -> str:
    """Quote the invalid value, unless it may be a secret or is too long to help."""
    is_secret = any(word in str(part) for part in path for word in ("url", "key", "token"))
    if is_secret or not isinstance(value, str | int | float | bool) or len(str(value)) > 60:
        return ""
    return f", not {value!r}"


def _find_source(path: Sequence[Any]) -> str:
    """Find where a setting is written: in the environment, which wins, or in the file."""
    names = [str(part) for part in path if isinstance(part, str)]
    for depth in range(len(names), 0, -1):
        variable = _VARIABLE_PREFIX + "__".join(names[:depth]).upper()
        if any(name.upper() == variable for name in os.environ):
            return variable
    line = _find_line(names)
    return f"{SETTINGS_FILE}:{line}" if line else SETTINGS_FILE


def _find_line(names: Sequence[str]) -> int | None:
    """Find the line of a key, as far as a plain search can."""
    try:
        lines = Path(SETTINGS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    table: list[str] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if head := re.fullmatch(r"\[{1,2}\s*([\w.-]+)\s*\]{1,2}\s*(?:#.*)?", text):
            table = head[1].split(".")
            if table == list(names):
                return number
        elif (key := re.match(r"([\w.-]+)\s*=", text)) and [*table, *key[1].split(".")][: len(names)] == list(names):
            return number
    return None


def _list_fields(model: type["BaseModel"], path: Sequence[Any]) -> list[str]:
    """List the names of a settings table."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = field.annotation
        models = [each for each in getattr(current, "__args__", ()) if hasattr(each, "model_fields")]
        current = models[0] if models else current
    return list(getattr(current, "model_fields", {}))


@dataclass(frozen=True, kw_only=True, slots=True)
class DevGateway:
    """Development gateway of this folder, as it announced itself."""

    url: str
    pid: int


def find_state_folder() -> Path:
    """Find the project's state folder: the setting `folder`, read without loading all settings.

    While `deputize dev --user` runs, it is the gateway's own for those who can read that, else the part for clients.
    Neither is in the project, where its owner could plant the address of another gateway.
    """
    if folder := os.environ.get(f"{_VARIABLE_PREFIX}FOLDER"):
        return Path(folder)
    root = locate_protected_folder(Path.cwd())
    for path in (root / GATEWAY_FOLDER / FILES_FOLDER / STATE_FOLDER, root / CLIENT_FOLDER):
        if find_dev_gateway(path) is not None:
            return path
    with contextlib.suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        folder = tomllib.loads(Path(SETTINGS_FILE).read_text(encoding="utf-8")).get("folder")
    return Path(folder) if isinstance(folder, str) and folder else Path(STATE_FOLDER)


def find_dev_gateway(folder: Path) -> DevGateway | None:
    """Find the gateway that `deputize dev` started here, if its process is alive."""
    try:
        facts: Mapping[str, Any] = json.loads((folder / "dev.json").read_bytes())
        dev_gateway = DevGateway(url=str(facts["url"]), pid=int(facts["pid"]))
        _require_process(dev_gateway.pid, os.stat(folder / "dev.json").st_uid)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dev_gateway


def _require_process(pid: int, uid: int) -> None:
    """Raise `OSError` unless a process is alive; one of another user must not be signalled, but is there."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        if uid == os.geteuid():
            raise


def is_client_folder(folder: Path) -> bool:
    """Tell whether a state folder is the part for clients of a gateway that runs as another user."""
    return folder == locate_protected_folder(Path.cwd()) / CLIENT_FOLDER


def read_saved_token(folder: Path, file: str = TOKEN_FILE) -> str | None:
    """Read a token that `deputize dev` saved, if any: the developer's own, or the one for agents."""
    with contextlib.suppress(OSError):
        return (folder / file).read_text(encoding="ascii").strip() or None
    return None
