"""Someone looks at every page of the console and at every filter, in one of ten tenants with a million entries and in
one with a thousand, in turn on the same gateway. Then agents call as fast as they can, with fifty live lists open and
with none, in turn.

In the control, everyone who follows reads for themselves: the calls must lose what the shared feed saves them. That no
page makes more than four queries is counted by a test of the gate.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import asyncpg
import orjson

from deputize.core.clock import Clock
from deputize.interfaces.console.cookies import SESSION
from proofs.audit_search.experiment import share_tool
from proofs.audit_search.judge import compute_percentile
from proofs.audit_search.sample_log import AGENT, PERSON, SCOPED_TOOL, Drawn, draw_entries, fill_log, wait_for_log
from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.load import PairedSamples, Sample, Target, run_paired_rounds, run_wrk
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.overhead.experiment import ARGUMENTS
from proofs.variants.console_sessions import SESSION_PREFIX, TENANTS_VARIABLE

NAME = "console"
PROMISE = "The console is as quick with a million calls as with a thousand, and who looks on does not slow down calls."

_BIG: Final = "acme"
_SMALL: Final = tuple(f"small-{number}" for number in range(9))
_FEW: Final = 1000
_FEEDS: Final = 50
_READ_BYTES: Final = 1 << 16
_READ_TOOL: Final = "orders.check"
# Of the list of calls and of the audit. The last two find little or nothing, and have to look everywhere for it.
_FILTERS: Final[Mapping[str, Mapping[str, str]]] = {
    "tool": {"tool": "crm.t1"},
    "caller": {"caller": PERSON},
    "agent": {"agent": AGENT},
    "state": {"outcome": "failed"},
    "succeeded": {"outcome": "succeeded"},
    "refused": {"decision": "deny"},
    "asked": {"decision": "ask"},
    "allowed": {"decision": "allow"},
    "rule": {"rule": "rule-1"},
    "resource": {"resource": "res-1"},
    "session": {"session": "s-1"},
    "two": {"tool": "crm.t1", "caller": PERSON},
    "rare rule": {"rule": "rule-rare"},
    "absent trace": {"trace": "f" * 32},
}


async def prove(sandbox: Sandbox) -> Verdict:
    clock, count = Clock(), sandbox.pick_size(quick=20_000, full=1_000_000)
    rounds = sandbox.pick_size(quick=6, full=60)
    postgres = await sandbox.start_postgres(settings={"fsync": "off", "max_wal_size": "4GB"})
    gateway = await start_gateway(sandbox, postgres.dsn, create_issuer(), tools="orders.py")
    owner = await asyncpg.connect(postgres.dsn)
    try:
        now_ms = clock.epoch_ms()
        entries = {_BIG: [each._replace(tenant=_BIG) for each in draw_entries(count, now_ms)]}
        for number, tenant in enumerate(_SMALL):
            entries[tenant] = [each._replace(tenant=tenant) for each in draw_entries(_FEW, now_ms - number - 1)]
        version = await share_tool(gateway, SCOPED_TOOL, (_BIG, _SMALL[0]))
        await fill_log(owner, [one for each in entries.values() for one in each], version, clock, sandbox.log)
        await wait_for_log(owner, clock)
    finally:
        await owner.close()
    gateway.env[TENANTS_VARIABLE] = f"{_BIG},{_SMALL[0]}"
    await restart_as_variant(gateway, "console_sessions")
    paths = {tenant: list_paths(entries[tenant]) for tenant in (_BIG, _SMALL[0])}
    times, failed = await _time_pages(gateway, paths, rounds)
    for page in paths[_BIG]:
        big, small = (compute_percentile(times[tenant][page], 50) for tenant in (_BIG, _SMALL[0]))
        sandbox.log(f"{page}: p50 {big:.1f} ms of {small:.1f}, p95 {compute_percentile(times[_BIG][page], 95):.1f} ms")
    shared = await _compare_calls(sandbox, gateway)
    sandbox.log(f"with {_FEEDS} live lists {shared.median:.3f} of the calls without, {shared.spread}")
    await restart_as_variant(gateway, "console_feeds_unshared")
    unshared = await _compare_calls(sandbox, gateway)
    sandbox.log(f"with {_FEEDS} lists that each read alone {unshared.median:.3f}, {unshared.spread}")
    return Verdict(
        figures={
            "entries": count,
            "tenants": 1 + len(_SMALL),
            "pages": len(paths[_BIG]),
            "pages_that_failed": failed,
            **summarize_pages(times[_BIG], times[_SMALL[0]]),
            "feeds": _FEEDS,
            "calls_with_feeds": round(shared.median, 3),
            "calls_with_feeds_unshared": round(unshared.median, 3),
        },
        controls={"console_feeds_unshared": unshared.median < min(0.9, shared.median)},
        notes=["Pages are fetched over one connection, each in the tenant with many calls and in one with few."],
    )


def list_paths(entries: Sequence[Drawn]) -> dict[str, str]:
    """List every page that shows something, and every filter, with ids of the entries of a tenant."""
    read = next(each for each in reversed(entries) if each.kind == "read")
    middle = entries[len(entries) // 2].id
    paths = {
        "home": "/console",
        "calls": "/console/calls",
        "older calls": f"/console/calls?before={middle}",
        "call": f"/console/calls/{read.call}",
        "audit": "/console/audit",
        "older audit": f"/console/audit?before={middle}",
        "audit of commands": "/console/audit?kind=command",
        "entry": f"/console/audit/{read.id}",
        "tools": "/console/tools",
        "search of tools": "/console/tools?q=order",
        "tool": f"/console/tools/{SCOPED_TOOL}",
        "policies": "/console/policies",
        "simulator": "/console/policies/simulate",
        "backtest": "/console/policies/backtest",
        "agents": "/console/agents",
        "approvals": "/console/approvals",
        "servers": "/console/servers",
        "switches": "/console/switches",
    }
    paths |= {f"calls by {name}": f"/console/calls?{urlencode(fields)}" for name, fields in _FILTERS.items()}
    return paths


def summarize_pages(big: Mapping[str, Sequence[float]], small: Mapping[str, Sequence[float]]) -> dict[str, Figure]:
    """Summarize by the slowest page, and by the one that more calls slow down most."""
    ratios = {page: statistics.median(big[page]) / statistics.median(small[page]) for page in big}
    return {
        "slowest_page_p95_ms": round(max(compute_percentile(each, 95) for each in big.values()), 1),
        "page_p50_ms": round(statistics.median(each for times in big.values() for each in times), 1),
        "of_few_calls": round(max(ratios.values()), 2),
    }


async def _time_pages(
    gateway: GatewayHandle, paths: Mapping[str, Mapping[str, str]], rounds: int
) -> tuple[dict[str, dict[str, list[float]]], int]:
    """Time each page in each tenant so many times, in turn. What the first look loads for all is not timed."""
    times: dict[str, dict[str, list[float]]] = {tenant: {page: [] for page in paths[tenant]} for tenant in paths}
    failed, http = 0, HttpConnection.for_url(gateway.url)
    cookies = _read_cookies(gateway)
    for number in range(rounds + 1):
        for page in paths[_BIG]:
            for tenant in paths:
                began = time.perf_counter()
                answer = await http.get(paths[tenant][page], cookie=cookies[tenant])
                if number:
                    times[tenant][page].append((time.perf_counter() - began) * 1000)
                failed += answer.status != 200
    http.close()
    return times, failed


def _read_cookies(gateway: GatewayHandle) -> dict[str, str]:
    lines = gateway.child.log.read_text(errors="replace").splitlines()
    found = [each.removeprefix(SESSION_PREFIX).split(" ", 1) for each in lines if each.startswith(SESSION_PREFIX)]
    return {tenant: f"{SESSION}={session}" for tenant, session in found}


async def _compare_calls(sandbox: Sandbox, gateway: GatewayHandle) -> PairedSamples:
    """Compare calls beside live lists with calls alone, in turn."""
    token = gateway.issuer.issue_token("ann", agent="bot")
    target = Target(
        url=f"{gateway.url}/v1/calls",
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        body=orjson.dumps({"tool": _READ_TOOL, "arguments": ARGUMENTS}),
    )

    async def load(seconds: int) -> Sample:
        return await run_wrk(target, seconds=seconds, connections=16)

    async def load_beside_feeds(seconds: int) -> Sample:
        async with _open_feeds(gateway):
            return await load(seconds)

    rounds, seconds = sandbox.pick_size(quick=3, full=10), sandbox.pick_size(quick=2, full=6)
    return await run_paired_rounds(load_beside_feeds, load, rounds=rounds, seconds=seconds)


@contextlib.asynccontextmanager
async def _open_feeds(gateway: GatewayHandle) -> AsyncIterator[None]:
    """Keep the live list of calls open so many times, half of them with a filter, and read what comes."""
    cookie = _read_cookies(gateway)[_BIG]
    paths = ["/console/calls/live", f"/console/calls/live?tool={_READ_TOOL}"]
    opened = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as tasks:
        readers = [
            tasks.create_task(_read_feed(gateway.url, paths[number % 2], cookie, opened)) for number in range(_FEEDS)
        ]
        for _ in readers:
            await opened.acquire()
        try:
            yield
        finally:
            for each in readers:
                each.cancel()


async def _read_feed(url: str, path: str, cookie: str, opened: asyncio.Semaphore) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncookie: {cookie}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"a live list was not opened: {head[:200]!r}")
        opened.release()
        while await reader.read(_READ_BYTES):
            pass
    finally:
        writer.close()
