"""The folder a person works in: its settings told in sentences, its development gateway, its token.

Commands run from any folder below the one that holds `deputize.toml`, as git does. Above: every command that
needs settings or a running gateway.
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

from deputize.core.mistakes import Misconfigured

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from deputize.core.settings import Settings

FILE = "deputize.toml"
STATE_FOLDER = ".deputize"
_PREFIX = "DEPUTIZE_"


def enter_project(*, required: bool = False) -> bool:
    """Go to the nearest folder, here or above, that holds `deputize.toml`; say whether there is one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            os.chdir(folder)
            return True
    if required:
        raise Misconfigured(f"There is no {FILE} here or above: run deputize init to make a project, then cd into it.")
    return False


def load_settings() -> "Settings":
    """The settings, or `Misconfigured` with one sentence for each mistake, naming its place and the fix."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from deputize.core.settings import Settings

    try:
        return Settings()
    except ValidationError as error:
        raise Misconfigured("\n".join(_sentences(error, Settings))) from None
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(
            f"{FILE} is not TOML: {str(error).lower()}; put text in quotes and check that line."
        ) from None
    except SettingsError as error:
        raise Misconfigured(_unreadable_variable(str(error))) from None
    except OSError as error:
        raise Misconfigured(f"{FILE} cannot be read ({error.strerror}): make it readable for you.") from None


def _unreadable_variable(message: str) -> str:
    name = re.search(r'field "([^"]+)"', message)
    what = f"{_PREFIX}{name[1].upper()}" if name else f"A {_PREFIX}… variable"
    return f"{what} is no valid JSON: set its parts one by one instead, as in {_PREFIX}SERVER__PORT=7070."


def _sentences(error: "ValidationError", settings: type["BaseModel"]) -> Iterator[str]:
    for found in error.errors(include_url=False, include_input=True):
        path = tuple(part for part in found["loc"])
        key = ".".join(str(part) for part in path)
        where = _source(path)
        if found["type"] == "extra_forbidden":
            known = _fields_at(settings, path[:-1])
            near = difflib.get_close_matches(str(path[-1]), known, n=1)
            holder = ".".join(str(part) for part in path[:-1])
            fix = f"did you mean {holder + '.' if holder else ''}{near[0]}?" if near else _choices(known)
            yield f"{where}: {key} is not a setting; {fix}"
        elif found["type"] == "missing":
            yield f"{where}: {key} is missing; add it."
        else:
            message = (found["msg"][:1].lower() + found["msg"][1:]).replace("valid tuple", "list")
            yield f"{where}: {key} is not right: {message}{_given(path, found['input'])}; write another value."


def _choices(known: Sequence[str]) -> str:
    return f"known here are {', '.join(known)}." if known else "take it out."


def _given(path: Sequence[Any], value: Any) -> str:
    """The wrong value itself, unless it may be a secret or is too long to help."""
    secret = any(word in str(part) for part in path for word in ("url", "key", "token"))
    if secret or not isinstance(value, str | int | float | bool) or len(str(value)) > 60:
        return ""
    return f", not {value!r}"


def _source(path: Sequence[Any]) -> str:
    """Where a setting was written: the environment wins over the file, so it is looked at first."""
    names = [str(part) for part in path if isinstance(part, str)]
    for depth in range(len(names), 0, -1):
        variable = _PREFIX + "__".join(names[:depth]).upper()
        if any(name.upper() == variable for name in os.environ):
            return variable
    line = _line_of(names)
    return f"{FILE}:{line}" if line else FILE


def _line_of(names: Sequence[str]) -> int | None:
    """The line a key stands on, as well as plain reading finds it."""
    try:
        lines = Path(FILE).read_text(encoding="utf-8").splitlines()
    except OSError:
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


def _fields_at(model: type["BaseModel"], path: Sequence[Any]) -> list[str]:
    """The names a table of settings knows."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = field.annotation
        inside = [each for each in getattr(current, "__args__", ()) if hasattr(each, "model_fields")]
        current = inside[0] if inside else current
    return list(getattr(current, "model_fields", {}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """The development gateway of this folder, as it introduced itself."""

    url: str
    pid: int


def state_folder() -> Path:
    """Where this project keeps its state: the setting `folder`, read without loading all settings."""
    if chosen := os.environ.get(f"{_PREFIX}FOLDER"):
        return Path(chosen)
    with contextlib.suppress(OSError, tomllib.TOMLDecodeError):
        chosen = tomllib.loads(Path(FILE).read_text(encoding="utf-8")).get("folder")
    return Path(chosen) if isinstance(chosen, str) and chosen else Path(STATE_FOLDER)


def running_gateway(folder: Path) -> Running | None:
    """The gateway that `deputize dev` started here, if its process still lives."""
    try:
        facts: Mapping[str, Any] = json.loads((folder / "dev.json").read_bytes())
        found = Running(url=str(facts["url"]), pid=int(facts["pid"]))
        os.kill(found.pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def saved_token(folder: Path) -> str | None:
    with contextlib.suppress(OSError):
        return (folder / "token").read_text(encoding="ascii").strip() or None
    return None
