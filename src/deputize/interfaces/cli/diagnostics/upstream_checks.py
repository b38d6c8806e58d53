"""Check that servers and services can be reached, for `deputize doctor`. Nothing is sent to them.

What a running gateway knows of a server says more: whether it answers, and what waits for a person.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from deputize.core.errors import EgressDenied, Problem
from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.egress import normalize_host, resolve_allowed_addresses, resolve_host
from deputize.execute.upstreams.program_files import ProgramFileError, resolve_command
from deputize.interfaces.cli.diagnostics.finding import Finding
from deputize.interfaces.cli.local.exported_servers import LiveServers
from deputize.interfaces.cli.render.output import format_count

_DEFAULT_PORTS = {"http": 80, "https": 443}
_CONNECT_SECONDS = 5.0
_MAX_CONNECTIONS = 20


async def check_upstreams(settings: Settings, live_servers: LiveServers | None = None) -> list[Finding]:
    """Report what the gateway says of its servers; connect to the others and the services, and find programs."""
    slots = asyncio.Semaphore(_MAX_CONNECTIONS)
    live_names = {each["name"] for each in live_servers or ()}
    servers = [each for each in settings.servers if each.name not in live_names]
    urls = [(f"server {each.name}", each.url, False) for each in servers if each.url]
    urls += [(f"service {each.name}", url, each.public_only) for each in settings.services for url in each.urls]

    async def check_one(check: str, url: str, public_only: bool) -> Finding:
        async with slots:
            return await _check_url(check, url, public_only)

    findings = await asyncio.gather(*(check_one(*each) for each in urls))
    lists = [(each.name, target) for each in settings.servers for target in each.hosts]
    misplaced = await asyncio.gather(*(_check_host(*each) for each in lists))
    findings += [each for each in misplaced if each is not None]
    programs = (_check_program(each) for each in servers if each.command)
    return [*map(_describe_live_server, live_servers or ()), *findings, *programs]


def _describe_live_server(server: Mapping[str, Any]) -> Finding:
    """Describe a server as the gateway sees it: whether it answers, its pins, and what waits for a person."""
    check, name = f"server {server['name']}", server["name"]
    pinned = f"{format_count(len(server['tools']), 'tool')} pinned"
    if server["status"] != "connected":
        reason = server["why"] or "not seen yet"
        todo = f"run deputize servers test {name}; its tools are unavailable meanwhile"
        return Finding(check=check, status="warning", summary=f"{reason}; {pinned}", todo=todo)
    unconfirmed = sum(each["source"] == "unconfirmed" for each in server["tools"])
    open_matters = [
        (
            server["changes"],
            f"{format_count(server['changes'], 'change')} to review",
            f"deputize servers review {name}",
        ),
        (unconfirmed, f"the effects of {unconfirmed} not confirmed", f"deputize servers effects {name}"),
    ]
    summary = ", ".join([f"connected, {pinned}", *(text for count, text, _ in open_matters if count)])
    todo = "; ".join(command for count, _, command in open_matters if count)
    return Finding(check=check, status="warning" if todo else "good", summary=summary, todo=todo)


async def _check_host(server: str, target: str) -> Finding | None:
    """Name a host that a program in a sandbox does not reach, because it is in the operator's own network."""
    host, _, port = target.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await resolve_allowed_addresses(normalize_host(host), int(port), frozenset(), resolve_host)
    except EgressDenied as error:
        todo = f'move "{target}" from hosts of {server} to private_hosts, if that is the host that you mean'
        return Finding(check=f"server {server}", status="warning", summary=error.message, todo=todo)
    except (Problem, OSError):
        # It may be down, or known only where the gateway runs.
        return None
    return None


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


def _check_program(server: McpServerSettings) -> Finding:
    try:
        program = resolve_command(server, server.env.get("PATH", os.environ.get("PATH", os.defpath)))
    except ProgramFileError as error:
        todo = f"install it, or correct command of {server.name}: its tools are unavailable meanwhile"
        return Finding(check=f"server {server.name}", status="warning", summary=str(error), todo=todo)
    return Finding(check=f"server {server.name}", status="good", summary=f"{program.binary} is installed")
