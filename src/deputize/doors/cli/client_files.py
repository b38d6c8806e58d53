"""Files in which MCP clients keep their servers, read as servers of ours: `.mcp.json`, VS Code's, Cursor's and alike.

Pure: the text, the variables and what lies beside the file come in; tables for `[[servers]]` go out, each with what has
to be said about it. Nothing secret is taken over: a credential is named, and put into the vault by a person.
Above: `importing.py`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deputize.core.addresses import is_address
from deputize.core.mistakes import Misconfigured

_LONGEST_NAME: Final = 40
_APART = re.compile(r"[^a-z0-9]+")
# ${VAR}, ${VAR:-default}, ${env:VAR}, ${input:id}, ${workspaceFolder}
_REFERENCE = re.compile(
    r"\$\{(?:(?P<kind>env|input|config|command):)?(?P<name>[A-Za-z0-9_.-]+)(?::-(?P<else>[^}]*))?\}"
)
_SECRET = re.compile(r"key|token|secret|passw|credential|auth|bearer|\bpat\b|_pat$", re.IGNORECASE)
# An argument that names a secret; what stands behind it, or the next one, is it.
_SECRET_FLAG = re.compile(r"-{1,2}[a-z0-9_-]*(?:key|token|secret|passw)[a-z0-9_-]*(=.*)?", re.IGNORECASE)
_PASSWORD_INSIDE = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_FOLDERS = frozenset({"workspaceFolder", "workspaceRoot", "userHome", "pathSeparator", "cwd"})
_HTTP = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})
_KNOWN = frozenset(
    {"type", "transport", "command", "args", "env", "url", "serverUrl", "headers", "cwd", "disabled", "enabled",
     "description", "timeout", "gallery", "version", "name"}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A table of `[[servers]]`, and what is left for the person to do or to know."""

    name: str
    called: str
    table: Mapping[str, Any]
    secret: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    called: str
    why: str


@dataclass(kw_only=True, slots=True)
class _Reading:
    """What one server's texts refer to, while they are read."""

    variables: Mapping[str, str]
    folder: str
    notes: list[str] = field(default_factory=list)

    def plain(self, text: str, what: str) -> str:
        """The text with what it refers to put in its place. Raises `_CannotBe` where that is a secret, or not there."""

        def value(found: re.Match[str]) -> str:
            name, kind = found["name"], found["kind"]
            if kind is None and name in _FOLDERS:
                if name in ("workspaceFolder", "workspaceRoot", "cwd"):
                    return self.folder
                raise _CannotBe(f"{what} refers to ${{{name}}}, which only its client knows")
            if kind in ("input", "config", "command") or _SECRET.search(name):
                raise _CannotBe(
                    f"{what} holds {found[0]}, which must not stand in a file; write it into env, as a secret"
                )
            known = self.variables.get(name, found["else"])
            if known is None:
                raise _CannotBe(f"{what} refers to {name}, which is not set here; set it, and import again")
            return known

        return _REFERENCE.sub(value, text)


class _CannotBe(Exception):
    """Why a server cannot be taken over."""


def read_servers(
    text: str,
    *,
    folder: str,
    variables: Mapping[str, str],
    taken: frozenset[str],
    exists: Callable[[str], bool],
) -> Iterator[Taken | LeftOut]:
    """Every server of the file, in its order. `taken` are the names that are in use, `exists` tells whether a relative
    path is there beside the file.
    """
    used = set(taken)
    for called, declared in _declared(text).items():
        name = _name(called)
        if name in used:
            yield LeftOut(called=called, why=f"a server {name} is there already")
            continue
        try:
            made = _taken(name, called, declared, _Reading(variables=variables, folder=folder), exists)
        except _CannotBe as why:
            yield LeftOut(called=called, why=str(why))
            continue
        used.add(name)
        yield made


def _declared(text: str) -> dict[str, Any]:
    try:
        whole = json.loads(_without_comments(text))
    except (ValueError, RecursionError):
        raise Misconfigured("The file is not JSON: check its commas and quotes.") from None
    if isinstance(whole, dict):
        nested = whole.get("mcp")
        for holder in (whole, nested if isinstance(nested, dict) else {}):
            for key in ("mcpServers", "servers"):
                if isinstance(holder.get(key), dict):
                    return dict(holder[key])
    raise Misconfigured(
        'The file names no servers: they stand under "mcpServers" (Claude Code, Cursor) or "servers" (VS Code).'
    )


def _taken(name: str, called: str, declared: Any, reading: _Reading, exists: Callable[[str], bool]) -> Taken:
    if not isinstance(declared, dict):
        raise _CannotBe("it is not described by an object")
    if declared.get("disabled") is True or declared.get("enabled") is False:
        raise _CannotBe("it is switched off in this file")
    for unknown in sorted(declared.keys() - _KNOWN):
        reading.notes.append(f"{unknown} was not taken over")
    url = declared.get("url", declared.get("serverUrl"))
    if declared.get("command") is not None:
        table, secret = _program(name, declared, reading, exists)
    elif isinstance(url, str):
        table, secret = _remote(name, declared, url, reading)
    else:
        raise _CannotBe("it has neither a command nor a url")
    return Taken(name=name, called=called, table=table, secret=secret, notes=tuple(reading.notes))


def _program(
    name: str, declared: Mapping[str, Any], reading: _Reading, exists: Callable[[str], bool]
) -> tuple[dict[str, Any], str | None]:
    words = [declared["command"], *_list(declared.get("args"), "args")]
    if not all(isinstance(each, str) and each for each in words[:1]) or not all(
        isinstance(each, str) for each in words
    ):
        raise _CannotBe("its command and arguments are not texts")
    if any(_SECRET_FLAG.fullmatch(each) or _PASSWORD_INSIDE.search(each) for each in words):
        raise _CannotBe(
            "its arguments hold a secret, which must not stand in a file; give it in a variable, if it takes one"
        )
    command = [reading.plain(each, "its command") for each in words]
    table: dict[str, Any] = {"name": name, "command": command}
    place = declared.get("cwd")
    if isinstance(place, str):
        table["folder"] = reading.plain(place, "cwd")
    elif any(not each.startswith(("-", "/")) and "/" in each.rstrip("/") and exists(each) for each in command) or any(
        exists(each) for each in command[1:] if "." in each and not each.startswith("-")
    ):
        # Clients start programs in the folder of their project, and this one names a file in it.
        table["folder"] = reading.folder
    env, secret, variable = _environment(name, declared.get("env"), reading)
    if env:
        table["env"] = env
    if secret is not None:
        table |= {"credential": "vault", "secret": secret, "secret_env": variable}
    return table, secret


def _environment(name: str, declared: Any, reading: _Reading) -> tuple[dict[str, str], str | None, str | None]:
    env: dict[str, str] = {}
    secret = variable = None
    if declared is not None and not isinstance(declared, dict):
        raise _CannotBe("its env is not an object")
    for key, value in (declared or {}).items():
        if not isinstance(value, str | int | float | bool):
            raise _CannotBe(f"its variable {key} is not a text")
        if _is_secret(key, str(value)):
            if secret is not None:
                raise _CannotBe(f"it wants several secrets ({variable} and {key}), and a server here has one")
            secret, variable = f"{name}/{_APART.sub('-', str(key).lower()).strip('-')}", str(key)
        else:
            env[str(key)] = reading.plain(str(value), f"its variable {key}")
    return env, secret, variable


def _remote(name: str, declared: Mapping[str, Any], url: str, reading: _Reading) -> tuple[dict[str, Any], str | None]:
    kind = declared.get("type", declared.get("transport", "http"))
    if kind == "sse":
        raise _CannotBe("it speaks the transport of 2024 (SSE), which is not spoken here; ask for its streamable HTTP")
    if kind not in _HTTP:
        raise _CannotBe(f"its transport {str(kind)[:40]} is not known here")
    address = reading.plain(url, "its url")
    if "@" in address.partition("://")[2].partition("/")[0] or _SECRET.search(address.partition("?")[2]):
        raise _CannotBe(
            "its url holds a credential, which must not stand in a file; have the server take it in a header"
        )
    if not is_address(address):
        raise _CannotBe("its url is no http or https address")
    table: dict[str, Any] = {"name": name, "url": address}
    headers = declared.get("headers") or {}
    if not isinstance(headers, dict):
        raise _CannotBe("its headers are not an object")
    carrying = [str(each) for each in headers if _is_secret(str(each), str(headers[each]))]
    if len(carrying) > 1:
        raise _CannotBe(f"it wants several secrets ({' and '.join(carrying)}), and a server here has one")
    for each in headers:
        if str(each) not in carrying:
            reading.notes.append(f"the header {each} was not taken over")
    if not carrying:
        return table, None
    header = carrying[0]
    secret = f"{name}/{_APART.sub('-', header.lower()).strip('-')}"
    if header.lower() != "authorization":
        table["header"] = header
    elif not str(headers[header]).lower().startswith("bearer "):
        raise _CannotBe("its Authorization is no bearer token, and nothing else is sent there")
    else:
        reading.notes.append("the secret is what stands behind Bearer")
    return table | {"credential": "vault", "secret": secret}, secret


def _is_secret(name: str, value: str) -> bool:
    asked = any(found["kind"] in ("input", "command") for found in _REFERENCE.finditer(value))
    named = (name, *(found["name"] for found in _REFERENCE.finditer(value)))
    return asked or any(_SECRET.search(each) for each in named) or bool(_PASSWORD_INSIDE.search(value))


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _CannotBe(f"its {what} are not a list")
    return value


def _name(called: str) -> str:
    """The name in the spelling of namespaces here."""
    word = _APART.sub("_", called.lower()).strip("_")
    if not word[:1].isalpha():
        word = f"server_{word}".strip("_")
    return word[:_LONGEST_NAME].strip("_")


def _without_comments(text: str) -> str:
    """Without `//` and `/* */` comments and commas before a closing bracket, none of them inside strings."""
    kept: list[str] = []
    place = 0
    while place < len(text):
        if text[place] == '"':
            end = place + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            kept.append(text[place : end + 1])
            place = end + 1
        elif text.startswith("//", place):
            end = text.find("\n", place)
            place = len(text) if end < 0 else end
        elif text.startswith("/*", place):
            end = text.find("*/", place)
            place = len(text) if end < 0 else end + 2
        elif text[place] == "," and re.match(r"\s*(?:(?://[^\n]*|/\*.*?\*/)\s*)*[\]}]", text[place + 1 :], re.DOTALL):
            place += 1
        else:
            kept.append(text[place])
            place += 1
    return "".join(kept)
