"""Read which registry the operator's npm or pip is configured to, and when it published a version.

`server_packages.py` lets a sandbox reach these registries and nothing else. What is configured for the operator is
taken as it stands; a private or plain address is one because they wrote it.
"""

import ast
import asyncio
import json
import os
import re
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.value_types import frozen
from deputize.execute.egress import Egress

_PORTS: Final = {"https": 443, "http": 80}
# What a registry has elsewhere: its files, or the keys of its signatures.
_OTHER_HOSTS: Final = {"pypi.org": "files.pythonhosted.org:443", "registry.npmjs.org": "tuf-repo-cdn.sigstore.dev:443"}
_NPM_ORIGIN: Final = "https://registry.npmjs.org"
_CONFIG_SECONDS: Final = 60
_METADATA_SECONDS: Final = 30.0
_METADATA_BYTES: Final = 67_108_864
_PIP_OPTION: Final = re.compile(r"(global|install|:env:)\.([a-z-]+)=(.*)")
_PIP_LISTS: Final = ("extra-index-url", "find-links")
_PIP_SWITCHES: Final = ("no-index", "pre", "trusted-host", "timeout", "default-timeout", "retries")


@frozen
class Registry:
    """Registries of one kind: their addresses, and what makes npm or pip in a sandbox use these and no others."""

    urls: tuple[str, ...]
    environment: Mapping[str, str]
    certificates: str | None = None

    @property
    def targets(self) -> frozenset[str]:
        """The hosts that are reached by TLS, each `host:port`."""
        hosts = [each.hostname for each in map(urlsplit, self.urls)]
        return self._list_targets("https") | {_OTHER_HOSTS[each] for each in hosts if each in _OTHER_HOSTS}

    @property
    def plain_targets(self) -> frozenset[str]:
        """The hosts that are reached without TLS."""
        return self._list_targets("http")

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders and files of this host that are read."""
        paths = [unquote(each.path).rstrip("/") for each in map(urlsplit, self.urls) if each.scheme == "file"]
        # The pages of an index are in its folder `simple`, and lead to the files beside it.
        local = [each.removesuffix("/simple") for each in paths]
        return (*local, *([] if self.certificates is None else [self.certificates]))

    def has(self, url: str) -> bool:
        """Tell whether a package's address is one of these registries."""
        parts = urlsplit(url)
        if parts.scheme == "file":
            return any(Path(os.path.normpath(unquote(parts.path))).is_relative_to(each) for each in self.folders)
        if parts.scheme not in _PORTS or not parts.hostname:
            return False
        return _find_target(url) in (self.targets if parts.scheme == "https" else self.plain_targets)

    def _list_targets(self, scheme: str) -> frozenset[str]:
        return frozenset(_find_target(each) for each in self.urls if urlsplit(each).scheme == scheme)


def _find_target(url: str) -> str:
    """Find the `host:port` of a web address; raise ConfigError if it has none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        host = port = None
    if not host:
        raise ConfigError(f"The registry {url[:200]} is no web address: correct it in the configuration of npm or pip.")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_npm_registry(npm: Sequence[str], folder: Path) -> Registry:
    """Read the registry of npm, and those of scopes, with their credentials and no others."""
    text = _read_config([*npm, "config", "list", "--json"], folder)
    options: dict[str, Any] = json.loads(text)
    registries = {
        name: str(value) for name, value in options.items() if name == "registry" or name.endswith(":registry")
    }
    certificates = options.get("cafile") or os.environ.get("NODE_EXTRA_CA_CERTS")
    registry = Registry(
        # npm fetches what its own registry names from the one that is configured in its place.
        urls=tuple(dict.fromkeys(registries.values())),
        environment={
            **{f"npm_config_{name}": value for name, value in registries.items()},
            **({"npm_config_cafile": str(certificates)} if certificates else {}),
        },
        certificates=str(certificates) if certificates else None,
    )
    credentials = _read_npm_credentials(Path(str(options.get("userconfig"))), registry)
    return Registry(
        urls=registry.urls,
        environment={**registry.environment, **credentials},
        certificates=registry.certificates,
    )


def is_npm_origin(url: str) -> bool:
    """Tell whether an address is npm's own registry, which npm replaces by the one that is configured."""
    return url.startswith(f"{_NPM_ORIGIN}/")


def _read_npm_credentials(file: Path, registry: Registry) -> dict[str, str]:
    """Read what a person's .npmrc has for these registries; npm itself does not tell it."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = {}
    for line in lines:
        name, separator, value = (each.strip() for each in line.partition("="))
        if name.startswith("//") and separator and any(registry.has(f"{each}:{name}") for each in _PORTS):
            value = value.strip("\"'")
            found[f"npm_config_{name}"] = re.sub(r"\$\{(\w+)\}", lambda each: os.environ.get(each[1], ""), value)
    return found


def read_pip_registry(pip: Sequence[str], folder: Path) -> Registry:
    """Read the indexes of pip and the folders of wheels, with the credentials that are in their addresses."""
    options: dict[str, str] = {}
    matches = [_PIP_OPTION.fullmatch(each) for each in _read_config([*pip, "config", "list"], folder).splitlines()]
    found = [each.groups() for each in matches if each is not None]
    for section in ("global", "install", ":env:"):
        options |= {name: str(ast.literal_eval(value)) for where, name, value in found if where == section}
    has_no_index = options.get("no-index", "").lower() in ("1", "true", "yes", "on")
    index = [] if has_no_index else [options.get("index-url", "https://pypi.org/simple")]
    lists = {
        name: [_to_url(each, folder) for each in options.get(name, "").split()]
        for name in _PIP_LISTS
        if name == "find-links" or not has_no_index
    }
    certificates = options.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE")
    environment = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in _PIP_SWITCHES:
        if name in options:
            environment[_name_variable(name)] = options[name]
    environment |= {_name_variable(name): " ".join(urls) for name, urls in lists.items() if urls}
    if index:
        environment["PIP_INDEX_URL"] = index[0]
    if certificates:
        environment["PIP_CERT"] = certificates
    return Registry(
        urls=tuple(dict.fromkeys([*index, *(each for urls in lists.values() for each in urls)])),
        environment=environment,
        certificates=certificates or None,
    )


def _name_variable(option: str) -> str:
    return f"PIP_{option.replace('-', '_').upper()}"


def _to_url(place: str, folder: Path) -> str:
    has_scheme = urlsplit(place).scheme in (*_PORTS, "file")
    return place if has_scheme else (folder / Path(place).expanduser()).resolve().as_uri()


def _read_config(command: Sequence[str], folder: Path) -> str:
    """Ask npm or pip for its configuration, in a folder that has none of its own."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CONFIG_SECONDS, cwd=folder
    )
    if done.returncode:
        raise ConfigError(f"The configuration of npm or pip cannot be read: {done.stderr.strip()[-300:]}")
    return done.stdout


def read_published_at(registry: Registry, kind: str, name: str, version: str) -> datetime | None:
    """Read when a version was published; None if its registry does not say it."""
    return asyncio.run(_read_published_at(registry, kind, name, version))


async def _read_published_at(registry: Registry, kind: str, name: str, version: str) -> datetime | None:
    hosts = frozenset(parts.hostname or "" for parts in map(urlsplit, registry.urls))
    tls = None if registry.certificates is None else ssl.create_default_context(cafile=registry.certificates)
    egress = Egress(hosts, max_bytes=_METADATA_BYTES, seconds=_METADATA_SECONDS, tls=tls)
    try:
        for url in registry.urls:
            if urlsplit(url).scheme in _PORTS and (found := await _ask(egress, url.rstrip("/"), kind, name, version)):
                return found
    finally:
        await egress.aclose()
    return None


async def _ask(egress: Egress, url: str, kind: str, name: str, version: str) -> datetime | None:
    accept = "application/json" if kind == "npm" else "application/vnd.pypi.simple.v1+json"
    path = quote(name, safe="@") if kind == "npm" else f"{re.sub(r'[-_.]+', '-', name).lower()}/"
    try:
        status, body = await egress.request("GET", f"{url}/{path}", headers={"Accept": accept})
        document = json.loads(body) if status == 200 else {}
        if kind == "npm":
            times = [document["time"][version]]
        else:
            # The names of wheels: NAME-VERSION-TAGS.
            files = [each for each in document["files"] if each["filename"].split("-")[1:2] == [version]]
            times = [each["upload-time"] for each in files if "upload-time" in each]
        return min(datetime.fromisoformat(each).astimezone(UTC) for each in times)
    except (Problem, ValueError, KeyError, TypeError, AttributeError):
        return None
