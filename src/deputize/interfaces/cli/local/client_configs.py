"""Convert the MCP servers in other clients' files, such as `.mcp.json`, to `[[servers]]` tables.

The result carries notes for the user. A secret is never copied: the result names it, and a person stores it in the
vault. Environment variables of this process are never read: what they hold may be secret. Pure: text and a file check
come in, tables go out.
"""

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import urlsplit

from deputize.core.config_error import ConfigError
from deputize.core.http_urls import is_http_url
from deputize.execute.ip_filter import is_forbidden_address

_MAX_NAME_LENGTH: Final = 40
_TARGET: Final = "deputize.toml"
_SEPARATORS = re.compile(r"[^a-z0-9]+")
# ${VAR}, ${VAR:-default}, ${env:VAR}, ${input:id}, ${workspaceFolder}
_REFERENCE = re.compile(
    r"\$\{(?:(?P<kind>env|input|config|command):)?(?P<name>[A-Za-z0-9_.-]+)(?::-(?P<else>[^}]*))?\}"
)
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|bearer|\bpat\b|_pat$", re.IGNORECASE)
# A flag that takes a secret as its value.
_SECRET_FLAG = re.compile(r"-{1,2}[a-z0-9_-]*(?:key|token|secret|passw)[a-z0-9_-]*(=.*)?", re.IGNORECASE)
# A secret behind its name: PASSWORD=x, "Api-Key: x" or "bearer x". Ports and tags, as in keycloak:8080, are none.
_NAMED_SECRET = re.compile(
    r"(?:(?:key|token|secret|passw|credential)[\w.-]{0,40}|(?<![a-z0-9-])(?:auth|pat)|(?<![a-z0-9])pass|[;_-]pwd)"
    r"[\"']?\s{0,4}=\s{0,4}\S"
    r"|(?:key|token|secret|passw(?:or)?d|credentials?|authorization)[\"']?\s{0,4}:(?!//)\s{0,4}\S"
    r"|\bbearer\s{1,4}\S",
    re.IGNORECASE,
)
_EMBEDDED_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]*@")
# Values that are secrets whatever they are called: known prefixes, JWTs, private keys, and long random texts.
_SECRET_VALUE = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|sk-|[sr]k_live_|xox[abeprs]-|A[KS]IA|AIza|hvs\.|npm_|whsec_)\w"
    r"|eyJ[\w-]{8,}\.[\w-]+\.|-----BEGIN |(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{32,}"
)
# Variables whose values are never secret. Every other variable of a server is treated as a secret.
_PLAIN_VARIABLES: Final = frozenset(
    {"CI", "COLUMNS", "DEBUG", "ENVIRONMENT", "FORCE_COLOR", "HOST", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE",
     "LOGLEVEL", "LOG_FORMAT", "LOG_LEVEL", "MODE", "NODE_ENV", "NO_COLOR", "PORT", "PYTHONDONTWRITEBYTECODE",
     "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONUTF8", "REGION", "RUST_BACKTRACE", "RUST_LOG", "TERM",
     "TZ", "AWS_REGION"}
)  # fmt: skip
_FOLDER_VARIABLES = frozenset({"workspaceFolder", "workspaceRoot", "userHome", "pathSeparator", "cwd"})
_HTTP_TRANSPORTS = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})
_SUPPORTED_KEYS = frozenset(
    {"type", "transport", "command", "args", "env", "url", "serverUrl", "headers", "cwd", "disabled", "enabled",
     "description", "timeout", "gallery", "version", "name"}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedServer:
    """Server converted to a `[[servers]]` table, with notes for the user.

    `is_known` says that the settings have a server of this name, to compare with.
    """

    name: str
    original_name: str
    table: Mapping[str, Any]
    secret: str | None = None
    notes: tuple[str, ...] = ()
    is_known: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedServer:
    """Server that cannot be imported, with the reason."""

    original_name: str
    reason: str


@dataclass(kw_only=True, slots=True)
class _ReferenceResolver:
    """Replaces references such as `${VAR}` in one server's texts."""

    folder: str
    notes: list[str] = field(default_factory=list)

    def resolve_text(self, text: str, label: str) -> str:
        """Replace references to folders, and others by their defaults; raise `_NotImportable` for a variable.

        A default is written in the file, so it is judged like the rest of the text.
        """

        def replace_reference(match: re.Match[str]) -> str:
            name, kind = match["name"], match["kind"]
            if kind is None and name in _FOLDER_VARIABLES:
                if name in ("workspaceFolder", "workspaceRoot", "cwd"):
                    return self.folder
                raise _NotImportable(
                    f"{label} uses ${{{name}}}, which only the client can resolve; write the path instead"
                )
            if kind in ("input", "config", "command") or _SECRET_NAME.search(name):
                raise _NotImportable(
                    f"{label} contains the secret {name}, which must not be in a file; pass it in env instead"
                )
            default = match["else"]
            if default is None:
                raise _NotImportable(
                    f"{label} uses the variable {name}; variables are not copied into {_TARGET}, because they may be "
                    "secret; write the value in the client's file, or pass it in env"
                )
            self.notes.append(f"the variable {name} in {label.removeprefix('its ')} was replaced by its default")
            return str(default)

        return _REFERENCE.sub(replace_reference, text)


class _NotImportable(Exception):
    """Reason why a server cannot be imported."""


def read_servers(
    text: str,
    *,
    folder: str,
    existing_names: frozenset[str],
    exists: Callable[[str], bool],
) -> Iterator[ImportedServer | SkippedServer]:
    """Convert every server of the file, in its order. `existing_names` are those that the settings have.

    `exists` tells whether a path relative to the client's project exists.
    """
    names: set[str] = set()
    for original_name, entry in _parse_server_entries(text).items():
        name = _normalize_name(original_name)
        if name in names:
            yield SkippedServer(
                original_name=original_name,
                reason=f"the file has another server that would be named {name}; rename one of them",
            )
            continue
        try:
            if _is_own_entry(entry):
                raise _NotImportable("it is a Deputize gateway, which deputize connect wrote")
            server = _import_server(name, original_name, entry, _ReferenceResolver(folder=folder), exists)
        except _NotImportable as error:
            yield SkippedServer(original_name=original_name, reason=str(error))
            continue
        names.add(name)
        yield replace(server, is_known=name in existing_names)


def _is_own_entry(entry: Any) -> bool:
    """Tell whether an entry starts `deputize mcp`: a gateway that imports itself would call itself."""
    if not isinstance(entry, dict) or not isinstance(entry.get("command"), str):
        return False
    arguments = entry.get("args")
    return PurePath(entry["command"]).name == "deputize" and isinstance(arguments, list) and "mcp" in arguments[:1]


def _parse_server_entries(text: str) -> dict[str, Any]:
    try:
        document = json.loads(strip_comments(text))
    except (ValueError, RecursionError):
        raise ConfigError("The file is not valid JSON: check its commas and quotes.") from None
    if isinstance(document, dict):
        mcp_section = document.get("mcp")
        for holder in (document, mcp_section if isinstance(mcp_section, dict) else {}):
            for key in ("mcpServers", "servers"):
                if isinstance(holder.get(key), dict):
                    return dict(holder[key])
    raise ConfigError(
        'The file lists no servers: expected an object "mcpServers" (Claude Code, Cursor) or "servers" (VS Code). '
        "An OpenAPI document is imported by deputize services import."
    )


def _import_server(
    name: str, original_name: str, entry: Any, resolver: _ReferenceResolver, exists: Callable[[str], bool]
) -> ImportedServer:
    if not isinstance(entry, dict):
        raise _NotImportable("its entry is not a JSON object")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        raise _NotImportable("it is disabled in this file; enable it and import again")
    for unknown in sorted(entry.keys() - _SUPPORTED_KEYS):
        resolver.notes.append(f"{unknown} is not supported and was not imported")
    url = entry.get("url", entry.get("serverUrl"))
    if entry.get("command") is not None:
        table, secret = _import_stdio_server(name, entry, resolver, exists)
    elif isinstance(url, str):
        table, secret = _import_http_server(name, entry, url, resolver)
    else:
        raise _NotImportable("it has neither a command nor a url; add one")
    return ImportedServer(
        name=name, original_name=original_name, table=table, secret=secret, notes=tuple(resolver.notes)
    )


def _import_stdio_server(
    name: str, entry: Mapping[str, Any], resolver: _ReferenceResolver, exists: Callable[[str], bool]
) -> tuple[dict[str, Any], str | None]:
    words = [entry["command"], *_require_list(entry.get("args"), "args")]
    if not all(isinstance(each, str) and each for each in words[:1]) or not all(
        isinstance(each, str) for each in words
    ):
        raise _NotImportable("its command and args must be strings")
    command = [resolver.resolve_text(each, "its command") for each in words]
    texts = (*words, *command)
    if any(_SECRET_FLAG.fullmatch(each) or _NAMED_SECRET.search(each) or _has_secret_value(each) for each in texts):
        raise _NotImportable(
            "its args contain a secret, which must not be in a file; pass it in env, if the server supports that"
        )
    # What a client's file says nothing about: which folders and hosts the program needs.
    table: dict[str, Any] = {"name": name, "command": command, "sandbox": False}
    cwd = entry.get("cwd")
    if isinstance(cwd, str):
        table["folder"] = resolver.resolve_text(cwd, "cwd")
    elif any(not each.startswith(("-", "/")) and "/" in each.rstrip("/") and exists(each) for each in command) or any(
        exists(each) for each in command[1:] if "." in each and not each.startswith("-")
    ):
        # Clients start programs in their project's folder, and this command names a file in it.
        table["folder"] = resolver.folder
    env, secret, variable = _split_environment(name, entry.get("env"), resolver)
    if env:
        table["env"] = env
    if secret is not None:
        table |= {"credential": "vault", "secret": secret, "secret_env": variable}
    return table, secret


def _split_environment(
    name: str, environment: Any, resolver: _ReferenceResolver
) -> tuple[dict[str, str], str | None, str | None]:
    env: dict[str, str] = {}
    secret = variable = None
    if environment is not None and not isinstance(environment, dict):
        raise _NotImportable("its env must be a JSON object")
    other_variables: list[str] = []
    for key, value in (environment or {}).items():
        if not isinstance(value, str | int | float | bool):
            raise _NotImportable(f"its variable {key} must be a string")
        if _is_secret(key, str(value)):
            if secret is not None:
                raise _NotImportable(f"it needs several secrets ({variable} and {key}), but a server can have only one")
            secret, variable = _name_secret(name, key), str(key)
        elif str(key).upper() in _PLAIN_VARIABLES and not _REFERENCE.search(str(value)):
            env[str(key)] = str(value)
        else:
            other_variables.append(str(key))
    if secret is None and len(other_variables) == 1:
        variable = other_variables.pop()
        secret = _name_secret(name, variable)
    for key in other_variables:
        resolver.notes.append(
            f"the variable {key} was not copied, because it may be a secret; if it is not, add it to env in {_TARGET}"
        )
    return env, secret, variable


def _name_secret(name: str, variable: str) -> str:
    """Name a server's secret in the vault after its variable or header."""
    return f"{name}/{_SEPARATORS.sub('-', variable.lower()).strip('-') or 'secret'}"


def _import_http_server(
    name: str, entry: Mapping[str, Any], url: str, resolver: _ReferenceResolver
) -> tuple[dict[str, Any], str | None]:
    kind = entry.get("type", entry.get("transport", "http"))
    if kind == "sse":
        raise _NotImportable(
            "it uses the SSE transport of 2024, which is not supported; use the server's streamable HTTP URL"
        )
    if kind not in _HTTP_TRANSPORTS:
        raise _NotImportable(f"its transport {str(kind)[:40]} is not supported; use stdio or streamable HTTP")
    address = resolver.resolve_text(url, "its url")
    if (
        "@" in address.partition("://")[2].partition("/")[0]
        or _SECRET_NAME.search(address.partition("?")[2])
        or _has_secret_value(address)
    ):
        raise _NotImportable("its url contains a credential, which must not be in a file; send it in a header instead")
    if not is_http_url(address):
        raise _NotImportable("its url is not an http or https URL")
    if _is_forbidden_host(address):
        raise _NotImportable("its url is a link-local address or a cloud metadata service, which is never reached")
    table: dict[str, Any] = {"name": name, "url": address}
    headers = entry.get("headers") or {}
    if not isinstance(headers, dict):
        raise _NotImportable("its headers must be a JSON object")
    secret_headers = [str(each) for each in headers if _is_secret(str(each), str(headers[each]))]
    if len(secret_headers) > 1:
        raise _NotImportable(
            f"it needs several secrets ({' and '.join(secret_headers)}), but a server can have only one"
        )
    for each in headers:
        if str(each) not in secret_headers:
            resolver.notes.append(f"the header {each} is not supported and was not imported")
    if not secret_headers:
        return table, None
    header = secret_headers[0]
    secret = _name_secret(name, header)
    if header.lower() != "authorization":
        table["header"] = header
    elif not str(headers[header]).lower().startswith("bearer "):
        raise _NotImportable("its Authorization header is not a bearer token, and only bearer tokens are supported")
    else:
        resolver.notes.append("Store the token without the 'Bearer ' prefix.")
    return table | {"credential": "vault", "secret": secret}, secret


def _is_forbidden_host(url: str) -> bool:
    """Tell whether a URL names an address that no setting allows, in any notation; names are resolved at each use."""
    host = urlsplit(url).hostname or ""
    try:
        return is_forbidden_address(host)
    except ValueError:
        pass
    try:
        # Notations of IPv4 that only the system's own parser reads: 2852039166, 0xa9fea9fe, 169.254.43518.
        return is_forbidden_address(socket.inet_ntoa(socket.inet_aton(host)))
    except OSError:
        return False


def _is_secret(name: str, value: str) -> bool:
    needs_prompt = any(match["kind"] in ("input", "command") for match in _REFERENCE.finditer(value))
    names = (name, *(match["name"] for match in _REFERENCE.finditer(value)))
    return needs_prompt or any(_SECRET_NAME.search(each) for each in names) or _has_secret_value(value)


def _has_secret_value(text: str) -> bool:
    """Tell whether a text looks like a secret, or contains one, whatever its name."""
    return bool(_EMBEDDED_PASSWORD.search(text) or _SECRET_VALUE.search(text))


def _require_list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _NotImportable(f"its {what} must be a list")
    return value


def _normalize_name(original_name: str) -> str:
    """Convert a name to a valid namespace."""
    word = _SEPARATORS.sub("_", original_name.lower()).strip("_")
    if not word[:1].isalpha():
        word = f"server_{word}".strip("_")
    return word[:_MAX_NAME_LENGTH].strip("_")


# A string, a comment, or a comma before the end of a list or object. Every alternative takes time linear in its text.
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?', re.DOTALL)
_TRAILING_COMMA = re.compile(r',(?=\s*+[\]}])|"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def strip_comments(text: str) -> str:
    """Remove `//` and `/* */` comments, then trailing commas, outside strings."""
    text = _STRING_OR_COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)
    return _TRAILING_COMMA.sub(lambda match: match[0] if match[0][0] == '"' else "", text)
