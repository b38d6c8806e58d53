"""Thousands of clients that come and go, and programs that end and are started again: nothing of them stays.

The clients speak both eras, some leave in the middle of a call or of a word. The program leaves a process behind that
wants to outlive it, and is killed from outside each time. What the gateway holds is read from /proc, before and after.
"""

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proofs.conformance.testbed import wait_for_tools
from proofs.kit.asgi_server import READY
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.process_usage import ProcessIdentity, ProcessUsage, identify_process, is_running, read_usage
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.sessions.clients import SessionClients

NAME = "sessions"
PROMISE = "Clients and programs that come and go leave no process, no open file and no memory behind."

MAX_GROWTH = 1.10
CONCURRENCY = 16
USER_COUNT = 50
_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = _ROOT / "proofs" / "sessions" / "leaky_server.py"
_SETTINGS = """
[[servers]]
name = "shop"
url = "{url}/mcp"
reads = ["*"]

[[servers]]
name = "program"
command = ["{python}", "-I", "-S", "{program}"]
sandbox = false
accept_risk = ["same-user", "unpinned", "unsandboxed"]
reads = ["*"]
start_seconds = 60
"""
_SETTLE_SECONDS = 180.0


@dataclass(kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    gateway: GatewayHandle
    issuer: Issuer
    clients: SessionClients
    known_identities: set[ProcessIdentity] = field(default_factory=set)
    restart_count: int = 0

    @classmethod
    async def start(cls, sandbox: Sandbox) -> "Testbed":
        argv = [sys.executable, "-m", "proofs.proxy.upstream_server"]
        upstream = await sandbox.start_process("upstream", argv, cwd=_ROOT, ready_line=READY, timeout=120)
        url = (await upstream.wait_for_line(READY)).partition(READY)[2].strip()
        settings = _SETTINGS.format(url=url, python=sys.executable, program=_PROGRAM)
        postgres, issuer = await sandbox.start_postgres(), create_issuer()
        gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="none*.py", settings=settings)
        tokens = [issuer.issue_token(f"user-{number}", agent="bot") for number in range(USER_COUNT)]
        testbed = cls(
            sandbox=sandbox, gateway=gateway, issuer=issuer, clients=SessionClients(gateway.url, tokens, "shop__quote")
        )
        await testbed.switch_to_variant("sessions_fast_clock")
        return testbed

    async def switch_to_variant(self, variant: str) -> None:
        await restart_as_variant(self.gateway, variant)
        for server in ("shop", "program"):
            await wait_for_tools(self.gateway, self.issuer.issue_token("ana"), f"{server}__", 1)

    @property
    def pid(self) -> int:
        return self.gateway.child.pid

    async def call_program(self) -> dict[str, int]:
        """The program, asked through the interface until it answers: right after its end a call may still find it
        gone.
        """
        http = HttpConnection.for_url(self.gateway.url, token=self.issuer.issue_token("ana"))
        params: dict[str, Any] = {"name": "program__visit", "arguments": {}}
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"accept": "application/json, text/event-stream"}
        async with asyncio.timeout(_SETTLE_SECONDS):
            while True:
                result = (await http.send("POST", "/mcp", headers=headers, body=body)).json().get("result", {})
                if result and not result.get("isError"):
                    http.close()
                    return dict(result["structuredContent"])
                await asyncio.sleep(0.02)

    async def kill_programs(self, number: int) -> None:
        for _ in range(number):
            pids = await self.call_program()
            identities = {identify_process(pid) for pid in pids.values()}
            os.kill(pids["pid"], signal.SIGKILL)
            await _count_survivors(identities)
            self.known_identities |= identities
            self.restart_count += 1
        self.known_identities |= {identify_process(pid) for pid in (await self.call_program()).values()}

    async def wait_until_settled(self, baseline: ProcessUsage | None = None) -> ProcessUsage:
        """What it holds once it holds no more than before, or no other than a moment ago, or the time is over."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        usage = read_usage(self.pid)
        while True:
            await asyncio.sleep(0.5)
            previous_usage, usage = usage, read_usage(self.pid)
            now_counts, baseline_counts = (
                (each.open_files, each.processes) for each in (usage, baseline or previous_usage)
            )
            is_settled = (
                now_counts == baseline_counts
                if baseline is None
                else now_counts[0] <= baseline_counts[0] and now_counts[1] <= baseline_counts[1]
            )
            if is_settled or time.monotonic() > deadline:
                return usage


async def _count_survivors(identities: set[ProcessIdentity]) -> int:
    """How many of them still run once they had time to go."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        survivor_count = sum(is_running(each) for each in identities)
        if survivor_count == 0 or time.monotonic() > deadline:
            return survivor_count
        await asyncio.sleep(0.01)


async def prove(sandbox: Sandbox) -> Verdict:
    testbed = await Testbed.start(sandbox)
    session_count, restart_count = sandbox.pick_size(quick=500, full=10_000), sandbox.pick_size(quick=30, full=1_000)
    warmup_count = sandbox.pick_size(quick=200, full=1_000)
    sandbox.log("warming: pools, caches and the allocator fill once")
    await testbed.clients.run_sessions(warmup_count, at_once=CONCURRENCY)
    await testbed.kill_programs(5)
    usage_before = await testbed.wait_until_settled()
    sandbox.log(f"before: {usage_before}")
    await testbed.clients.run_sessions(session_count, at_once=CONCURRENCY)
    usage_between = await testbed.wait_until_settled(usage_before)
    sandbox.log(f"after {session_count} sessions: {usage_between}")
    await testbed.kill_programs(restart_count)
    usage_after = await testbed.wait_until_settled(usage_before)
    sandbox.log(f"after {restart_count} restarts: {usage_after}")
    live_identities = {identify_process(pid) for pid in (await testbed.call_program()).values()}
    figures: dict[str, Figure] = {
        "sessions": testbed.clients.session_count - warmup_count,
        "restarts": testbed.restart_count - 5,
        "sessions_failed": testbed.clients.failures.total(),
        **judge_usage(usage_before, usage_after),
        "programs_left": sum(is_running(each) for each in testbed.known_identities - live_identities),
    }
    controls = {"a gateway that leaks": await _run_control(testbed)}
    # Not asked to stop but killed: even then nothing survives it.
    testbed.gateway.child.kill()
    await testbed.gateway.child.wait_for_exit()
    figures["programs_left_at_the_end"] = await _count_survivors(testbed.known_identities | live_identities)
    sandbox.log("killed, with everything it had started")
    notes = [f"{number} x {why}" for why, number in testbed.clients.failures.most_common(10)]
    return Verdict(figures=figures, controls=controls, notes=notes)


async def _run_control(testbed: Testbed) -> bool:
    """Held against the same bars, over fewer sessions: each of its leaks has to be seen."""
    await testbed.switch_to_variant("sessions_leaky")
    await testbed.clients.run_sessions(50, at_once=CONCURRENCY)
    usage_before = await testbed.wait_until_settled()
    await testbed.clients.run_sessions(150, at_once=CONCURRENCY)
    usage_after = read_usage(testbed.pid)
    testbed.sandbox.log(f"a gateway that leaks: from {usage_before} to {usage_after}")
    return has_every_leak(usage_before, usage_after)


def judge_usage(before: ProcessUsage, after: ProcessUsage) -> dict[str, Figure]:
    """Compare what the gateway holds after all sessions and restarts with what it held before."""
    return {
        "memory_grew_by": round(after.rss_mib / before.rss_mib, 3),
        "memory_mib": round(after.rss_mib, 1),
        "files_left": max(0, after.open_files - before.open_files),
        "processes_left": max(0, after.processes - before.processes),
    }


def has_every_leak(before: ProcessUsage, after: ProcessUsage) -> bool:
    """Tell whether memory, files and processes have all grown by what the bars would find."""
    figures = judge_usage(before, after)
    has_grown = float(figures["memory_grew_by"]) >= MAX_GROWTH
    return has_grown and bool(figures["files_left"]) and bool(figures["processes_left"])
