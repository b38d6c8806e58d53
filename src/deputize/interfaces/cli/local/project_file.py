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
        text = _read_settings_file() if content is None else content.decode()
        raise ConfigError("\n".join(_explain_errors(error, Settings, text))) from None
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


def _read_settings_file() -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(SETTINGS_FILE).read_text(encoding="utf-8")
    return ""


def _explain_errors(error: "ValidationError", settings: type["BaseModel"], text: str) -> Iterator[str]:
    for issue in error.errors(include_url=False, include_input=True):
        path = issue["loc"]
        variable = _find_variable(path)
        table, names = _name_setting(path, "" if variable else text)
        where = f"{variable or _find_place(path, text)}: {table}{': ' if table else ''}"
        key = ".".join(names)
        value = _quote_value(path, issue["input"])
        contrast = f", not {value}" if value else ""
        if issue["type"] == "extra_forbidden":
            field_names = _list_fields(settings, path[:-1])
            matches = difflib.get_close_matches(str(path[-1]), field_names, n=1)
            fix = f"did you mean {'.'.join([*names[:-1], *matches])}?" if matches else _list_choices(field_names)
            yield f"{where}{key} is not a setting; {fix}"
        elif issue["type"] == "missing":
            yield f"{where}{key} is missing; add it."
        elif issue["type"] == "value_error":
            # A sentence of our own, which says what to do.
            yield f"{where}{f'{key} is invalid: ' if key else ''}{issue['ctx']['error']}{contrast}."
        elif issue["type"] == "string_pattern_mismatch":
            problem = f"cannot be {value}" if value else "is invalid"
            yield f"{where}{key} {problem}; expected: {_describe_field(settings, path)}."
        else:
            message = (issue["msg"][:1].lower() + issue["msg"][1:]).replace("valid tuple", "list")
            yield f"{where}{key} is invalid: {message}{contrast}; correct the value."


def _name_setting(path: Sequence[str | int], text: str) -> tuple[str, list[str]]:
    """Name the table that a setting is in, such as `server orders`, if it is one of several, and the setting."""
    found: Any = tomllib.loads(text)
    for position, part in enumerate(path):
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            break
        name = found.get("name") if isinstance(part, int) and isinstance(found, dict) else None
        if isinstance(name, str) and len(name) <= 60:
            kind = str(path[position - 1]).removesuffix("s")
            return f"{kind} {name}", [each for each in path[position + 1 :] if isinstance(each, str)]
    # Without the file, numbers are all that tells which one is meant.
    return "", [str(each) for each in path if isinstance(each, str) or not text]


def _list_choices(names: Sequence[str]) -> str:
    return f"known settings: {', '.join(names)}." if names else "remove it."


def _quote_value(path: Sequence[Any], value: Any) -> str:
    """Quote the invalid value, unless it may be a secret or is too long to help."""
    is_secret = any(word in str(part) for part in path for word in ("url", "key", "token"))
    if is_secret or not isinstance(value, str | int | float | bool) or len(str(value)) > 60:
        return ""
    return repr(value)


def _find_variable(path: Sequence[str | int]) -> str | None:
    """Find the environment variable that a setting is from, which wins over the file."""
    names = [part for part in path if isinstance(part, str)]
    for depth in range(len(names), 0, -1):
        variable = _VARIABLE_PREFIX + "__".join(names[:depth]).upper()
        if any(name.upper() == variable for name in os.environ):
            return variable
    return None


def _find_place(path: Sequence[str | int], text: str) -> str:
    """Find the line of a setting, or else of the table or list that it is in, as far as a plain search can."""
    lines = list(_list_keys(text))
    for depth in range(len(path), 0, -1):
        wanted = tuple(path[:depth])
        line = next((number for number, key in lines if key[:depth] == wanted), None)
        if line is not None:
            return f"{SETTINGS_FILE}:{line}"
    return SETTINGS_FILE


def _list_keys(text: str) -> Iterator[tuple[int, tuple[str | int, ...]]]:
    """List the lines that have the head of a table or a key, each with its path in the settings."""
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.fullmatch(r"(\[{1,2})\s*([\w.-]+)\s*\]{1,2}\s*(?:#.*)?", line.strip()):
            table, names = (), head[2].split(".")
            for position, name in enumerate(names, start=1):
                table = (*table, name)
                if position == len(names) and head[1] == "[[":
                    counts[table] = counts.get(table, -1) + 1
                # `[servers.limits]` belongs to the last of `[[servers]]`.
                table = (*table, counts[table]) if table in counts else table
            yield number, table
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            yield number, (*table, *key[1].split("."))


def _list_fields(model: type["BaseModel"], path: Sequence[Any]) -> list[str]:
    """List the names of a settings table."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = _find_model(field.annotation)
    return list(getattr(current, "model_fields", {}))


def _describe_field(model: type["BaseModel"], path: Sequence[Any]) -> str:
    """Describe what a setting takes in the first sentence of its description; a pattern says it to programs only."""
    current: Any = model
    description = ""
    for part in path:
        field = getattr(current, "model_fields", {}).get(part)
        if field is not None:
            description, current = field.description or "", _find_model(field.annotation)
    sentence = re.split(r"\.(?:\s|$)", description, maxsplit=1)[0].replace("`", "")
    first_word = sentence.partition(" ")[0]
    return sentence[:1].lower() + sentence[1:] if first_word.istitle() else sentence


def _find_model(annotation: Any) -> Any:
    return next((each for each in getattr(annotation, "__args__", ()) if hasattr(each, "model_fields")), annotation)


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
