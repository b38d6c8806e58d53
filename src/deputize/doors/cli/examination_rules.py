"""The checks of `deputize doctor` on what decides about calls: tools, hooks, policies, counters and vault."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from deputize.core.clock import Clock
from deputize.core.errors import CredentialExpired, CredentialMissing, Problem
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.doors.cli.finding import Finding
from deputize.doors.cli.loading import Loaded, load
from deputize.doors.cli.output import counted
from deputize.govern.policy.check import check
from deputize.govern.policy.files import read_files
from deputize.govern.policy.rules import examine
from deputize.govern.vault.openbao import OpenBao
from deputize.lifecycle.rehearse import fact_types, names
from deputize.store.shared.counters import CountersLost, Window

_PORTS = {"http": 80, "https": 443}
_NOBODYS_SECRET = "deputize-doctor"


async def examine_rules(settings: Settings, *, development: bool) -> AsyncIterator[Finding]:
    for finding in _of_files(settings, development=development):
        yield finding
    if settings.policy.engine != "cedar":
        yield await _decision_point(settings)
    if settings.limits.redis_url is not None:
        yield await _counters(settings)
    if settings.vault.kind == "openbao":
        yield await _vault(settings)


def _of_files(settings: Settings, *, development: bool) -> Iterator[Finding]:
    """What a start would read; a file that cannot be had stops `serve` and is left out by `dev`."""
    try:
        loaded = load(settings, Path.cwd())
    except Misconfigured as error:
        yield Finding(check="hooks", status="broken", found="one cannot be loaded", todo=str(error))
        return
    if loaded.refusals:
        first = loaded.refusals[0]
        yield Finding(
            check="tools",
            status="warning" if development else "broken",
            found=f"{counted(len(loaded.refusals), 'refusal')}, first {first.what}",
            todo=first.reasons[0],
        )
    elif loaded.tools:
        yield Finding(check="tools", status="good", found=f"{counted(len(loaded.tools), 'tool')} from files")
    if loaded.hooks:
        yield Finding(check="hooks", status="good", found=", ".join(hook.name for hook in loaded.hooks))
    if settings.policy.files:
        yield _policies(settings, loaded)


def _policies(settings: Settings, loaded: Loaded) -> Finding:
    try:
        files = read_files(settings.policy.files)
    except Misconfigured as error:
        return Finding(check="policies", status="broken", found="they cannot be read", todo=str(error))
    contracts = [tool.contract for tool in loaded.tools]
    known = names(contracts, settings.tools.tenant) if contracts else None
    found = check(files, fact_types(contracts), known=known)
    rules, _ = examine(files)
    counts = f"{counted(len(rules), 'rule')} in {counted(len(files), 'file')}"
    wrong = found.errors or found.warnings
    if not wrong:
        return Finding(check="policies", status="good", found=counts)
    mistake = f"{wrong[0].file}:{wrong[0].line}: {wrong[0].message}"
    number = f"{counted(len(found.errors), 'mistake')}, {counted(len(found.warnings), 'warning')}"
    return Finding(
        check="policies", status="broken" if found.errors else "warning", found=f"{counts}, {number}",
        todo=f"{mistake}; deputize policy check lists all",
    )  # fmt: skip


async def _decision_point(settings: Settings) -> Finding:
    """Only whether somebody listens: what it says, it says about real calls."""
    address = settings.policy.authzen_url or ""
    place = urlsplit(address)
    if place.scheme not in _PORTS or not place.hostname:
        todo = "put authzen_url under [policy], as in https://pdp.example.com"
        return Finding(check="decision point", status="broken", found="no address is named", todo=todo)
    try:
        async with asyncio.timeout(settings.policy.authzen_seconds):
            _, writer = await asyncio.open_connection(place.hostname, place.port or _PORTS[place.scheme])
    except (OSError, TimeoutError):
        todo = "start it, or correct policy.authzen_url: until it answers, every call is denied"
        return Finding(check="decision point", status="broken", found=f"nothing answers at {address}", todo=todo)
    writer.close()
    return Finding(check="decision point", status="good", found=f"{address} listens")


async def _counters(settings: Settings) -> Finding:
    assert settings.limits.redis_url is not None
    try:
        redis = importlib.import_module("deputize.store.shared.redis")
        url, seconds = settings.limits.redis_url.get_secret_value(), settings.limits.redis_seconds
        counters = redis.RedisCounters(url, seconds=seconds, clock=Clock())
    except ImportError:
        return Finding(check="counters", status="broken", found="no client for Redis", todo="pip install redis")
    except Misconfigured as error:
        return Finding(check="counters", status="broken", found="limits.redis_url is no address", todo=str(error))
    try:
        await counters.take([Window(key="{deputize-doctor}", limit=1, seconds=1.0, weight=1)])
    except CountersLost as error:
        todo = "start Redis, or correct limits.redis_url: until then each limit does what its when_lost says"
        return Finding(check="counters", status="broken", found=str(error), todo=todo)
    finally:
        await counters.close()
    return Finding(check="counters", status="good", found="Redis answers")


async def _vault(settings: Settings) -> Finding:
    """A secret that nobody has is asked for: that there is none is an answer."""
    try:
        vault = OpenBao(settings.vault, Clock())
    except Misconfigured as error:
        return Finding(check="vault", status="broken", found="it cannot be asked", todo=str(error))
    try:
        await vault.fetch(settings.tools.tenant, _NOBODYS_SECRET, seconds=settings.vault.seconds)
    except (CredentialMissing, CredentialExpired):
        pass
    except Problem as error:
        todo = (
            f"check {settings.vault.address} and {settings.vault.token_file}: calls that need a secret fail until then"
        )
        return Finding(check="vault", status="broken", found=error.message, todo=todo)
    finally:
        vault.close()
    return Finding(check="vault", status="good", found=f"{settings.vault.address} answers, and takes our token")
