"""What `deputize dev` makes and keeps in the project's folder, and how it tells of tools it left out."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import jwt

from deputize.catalog.importers.mcp import scopes_of
from deputize.core.caller import ADMIN_SCOPE
from deputize.core.definition import PythonTool
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.doors.cli.loading import Refusal
from deputize.doors.cli.output import printer
from deputize.doors.cli.project import Running, running_gateway, saved_token
from deputize.govern.identity.development import development_issuer, mint
from deputize.store.private_file import write_over

_TOKEN_SECONDS = 30 * 86_400
_RENEW_SECONDS = 7 * 86_400
_PORTS_TRIED = 50


def make_folder(folder: Path) -> None:
    """The state folder; root lets the database's account pass through it, and see nothing on the way."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    except OSError as error:
        raise Misconfigured(
            f"The folder {folder} cannot be made ({error.strerror}): "
            "run this where you may write, or set folder in deputize.toml."
        ) from error


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One development gateway per project; the lock ends with the process, however it ends."""
    handle = os.open(folder / "dev.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            running = running_gateway(folder)
            where = f" at {running.url} (process {running.pid})" if running else ""
            raise Misconfigured(
                f"deputize dev already runs for this project{where}: use that one, or stop it with Ctrl-C first."
            ) from None
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def announced(folder: Path, running: Running) -> Iterator[None]:
    """While this lasts, other commands find the gateway."""
    write_over(folder / "dev.json", json.dumps({"url": running.url, "pid": running.pid}).encode())
    try:
        yield
    finally:
        (folder / "dev.json").unlink(missing_ok=True)


def ensure_token(settings: Settings, tools: Iterable[PythonTool]) -> tuple[str, bool]:
    """The project's own token, which may do everything its tools need; and whether it was made just now."""
    folder, tenant = settings.folder, settings.tools.tenant
    scopes = {ADMIN_SCOPE, *(scope for tool in tools for scope in tool.contract.auth.scopes)}
    scopes |= {scope for each in settings.servers if each.tenant in (None, tenant) for scope in scopes_of(each)}
    development_issuer(folder)
    kept = saved_token(folder)
    if kept is not None and _is_good(kept, mint(folder, lifetime=1), scopes, tenant):
        return kept, False
    made = mint(folder, scopes=sorted(scopes), tenant=tenant, lifetime=_TOKEN_SECONDS)
    write_over(folder / "token", made.encode() + b"\n")
    return made, True


def _is_good(kept: str, fresh: str, scopes: set[str], tenant: str) -> bool:
    """Signed with the key that signs now, not about to expire, and allowed what the tools need by now."""
    try:
        claims = jwt.decode(kept, options={"verify_signature": False})
        same_key = jwt.get_unverified_header(kept).get("kid") == jwt.get_unverified_header(fresh).get("kid")
        lasts = int(claims["exp"]) > time.time() + _RENEW_SECONDS
        return same_key and lasts and claims.get("tenant") == tenant and scopes <= set(str(claims["scope"]).split())
    except (jwt.PyJWTError, KeyError, ValueError, TypeError):
        return False


def show_refusals(refusals: Iterable[Refusal], verb: str = "was left out") -> None:
    for each in refusals:
        where = f" ({each.file})" if each.file and each.file != each.what else ""
        printer.bad(f"{each.what}{where} {verb}:")
        for reason in each.reasons:
            printer.aside(f"    {reason}")


def free_port(host: str, port: int, *, avoid: int = 0) -> int:
    """The port itself, or the next one above it that nobody has."""
    for candidate in range(port, min(port + _PORTS_TRIED, 65_536)):
        if candidate == 0 or (candidate != avoid and is_free(host, candidate)):
            return candidate
    raise Misconfigured(f"No port from {port} on is free at {host}: choose one with --port, or --port 0 for any.")


def any_port(host: str) -> int:
    """A port nobody has, known before anything listens on it: the gateway is named after its address."""
    with contextlib.suppress(OSError):
        family, _, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.create_server((str(place[0]), 0), family=family) as bound:
            return int(bound.getsockname()[1])
    raise Misconfigured(f"No port is free at {host}: set host under [server] to an address of this machine.")


def is_free(host: str, port: int) -> bool:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server((str(place[0]), port), family=family):
            return True
    except OSError:
        return False
