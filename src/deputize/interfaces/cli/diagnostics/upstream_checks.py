"""Check that servers and services can be reached, for `deputize doctor`. Nothing is sent to them."""

import asyncio
import os
import time
from urllib.parse import urlsplit

from deputize.core.errors import EgressDenied, Problem
from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.egress import normalize_host, resolve_allowed_addresses, resolve_host
from deputize.execute.upstreams.program_files import ProgramFileError, resolve_command
from deputize.interfaces.cli.diagnostics.finding import Finding

_DEFAULT_PORTS = {"http": 80, "https": 443}
_CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 20


async def check_upstreams(settings: Settings) -> list[Finding]:
    """Connect to every server and service, several at a time, and find the programs of servers."""
    slots = asyncio.Semaphore(_MAX_CONNECTIONS)
    urls = [(f"server {each.name}", each.url, False) for each in settings.servers if each.url]
    urls += [(f"service {each.name}", each.url, each.public_only) for each in settings.services]

    async def check_one(check: str, url: str, public_only: bool) -> Finding:
        async with slots:
            return await _check_url(check, url, public_only)

    findings = await asyncio.gather(*(check_one(*each) for each in urls))
    programs = (_check_program(each) for each in settings.servers if each.command)
    return [*findings, *(each for each in programs if each is not None)]


async def _check_url(check: str, url: str, public_only: bool) -> Finding:
    target = urlsplit(url)
    host, started_at = target.hostname or "", time.monotonic()
    try:
        port = target.port or _DEFAULT_PORTS.get(target.scheme, 443)
        async with asyncio.timeout(_CONNECT_SECONDS):
            await _connect(host, port, frozenset() if public_only else frozenset({normalize_host(host)}))
    except EgressDenied as error:
        return Finding(check=check, status="broken", summary=error.message, todo=error.advice or f"correct {url}")
    except (Problem, OSError, ValueError) as error:
        reason = error.message if isinstance(error, Problem) else f"nothing answers at {host}"
        todo = "start it, or correct its url: its tools are unavailable meanwhile"
        return Finding(check=check, status="warning", summary=reason, todo=todo)
    duration_ms = (time.monotonic() - started_at) * 1000
    return Finding(check=check, status="good", summary=f"{host} listens, {duration_ms:.0f} ms")


async def _connect(host: str, port: int, private_hosts: frozenset[str]) -> None:
    """Connect to the first address that answers, of those that the gateway may connect to."""
    addresses = await resolve_allowed_addresses(host, port, private_hosts, resolve_host)
    for number, address in enumerate(addresses, start=1):
        try:
            _, writer = await asyncio.open_connection(address, port)
        except OSError:
            if number == len(addresses):
                raise
            continue
        writer.close()
        return


def _check_program(server: McpServerSettings) -> Finding | None:
    try:
        resolve_command(server, server.env.get("PATH", os.environ.get("PATH", os.defpath)))
    except ProgramFileError as error:
        todo = f"install it, or correct command of {server.name}: its tools are unavailable meanwhile"
        return Finding(check=f"server {server.name}", status="warning", summary=str(error), todo=todo)
    return None
