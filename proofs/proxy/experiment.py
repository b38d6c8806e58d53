"""What it costs to reach a tool of an MCP server through the gateway instead of directly.

One server of the official SDK, the same call, one at a time and 16 at once, rounds in turn, medians. Through the
gateway the call has a token, a policy decision, both validations and a durable audit entry, and the server counts that
every call reached it. The full form puts other proxies beside it, each with what it does and does not do.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import httpx2

from proofs.conformance.testbed import wait_for_tools
from proofs.kit.asgi_server import READY
from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.proxy.endpoints import ToolEndpoint, build_target
from proofs.proxy.peers import start_peers
from proofs.proxy.rounds import BenchmarkTarget, TargetRuns, compute_slowdown, run_rounds
from proofs.proxy.upstream_server import TOOL

NAME = "proxy"
PROMISE = "A tool of an MCP server, governed, takes at most 2.5 times as long as without anything between."

SERVER = "shop"
CONCURRENCY_LEVELS = (1, 16)
MAX_SLOWDOWN = 2.5
MAX_CPU_MS = 1.0
# Now and then the gateway looks whether the server is still the same.
MAX_MESSAGES_PER_CALL = 1.2
_SETTINGS = """
[[servers]]
name = "{name}"
url = "{url}/mcp"
reads = ["*"]
"""
_ROOT = Path(__file__).resolve().parents[2]
_COUNT = "select count(*) from deputize.audit_entries"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCounts:
    """What the server counted."""

    call_count: int
    message_count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    url: str
    upstream: ChildProcess
    gateway: GatewayHandle
    token: str

    @classmethod
    async def start(cls, sandbox: Sandbox, dsn: str, issuer: Issuer) -> "Testbed":
        argv = [sys.executable, "-m", "proofs.proxy.upstream_server"]
        upstream = await sandbox.start_process("upstream", argv, cwd=_ROOT, ready_line=READY)
        url = (await upstream.wait_for_line(READY)).partition(READY)[2].strip()
        settings = _SETTINGS.format(name=SERVER, url=url)
        gateway = await start_gateway(sandbox, dsn, issuer, tools="none*.py", settings=settings)
        testbed = cls(
            sandbox=sandbox, url=url, upstream=upstream, gateway=gateway, token=issuer.issue_token("ana", agent="bot")
        )
        await wait_for_tools(gateway, testbed.token, f"{SERVER}__", 1)
        return testbed

    async def build_direct_target(self) -> BenchmarkTarget:
        return BenchmarkTarget(
            request=await build_target(ToolEndpoint(name="direct", base=self.url, tool=TOOL)), process=self.upstream
        )

    async def build_gateway_target(self) -> BenchmarkTarget:
        endpoint = ToolEndpoint(name="deputize", base=self.gateway.url, tool=f"{SERVER}__{TOOL}", token=self.token)
        return BenchmarkTarget(request=await build_target(endpoint), process=self.gateway.child)

    async def fetch_counts(self) -> ServerCounts:
        async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as client:
            counts = (await client.get(f"{self.url}/seen")).raise_for_status().json()
        return ServerCounts(call_count=counts["calls"], message_count=counts["messages"])

    async def measure_messages_per_call(self) -> float:
        """What the server was sent for each call through the gateway, as it is now."""
        target, before = await self.build_gateway_target(), await self.fetch_counts()
        await run_rounds({"deputize": target}, connections=1, count=1, seconds=1)
        after = await self.fetch_counts()
        return (after.message_count - before.message_count) / (after.call_count - before.call_count)


async def prove(sandbox: Sandbox) -> Verdict:
    postgres, issuer = await sandbox.start_postgres(), create_issuer()
    testbed = await Testbed.start(sandbox, postgres.dsn, issuer)
    targets = {"direct": await testbed.build_direct_target(), "deputize": await testbed.build_gateway_target()}
    peers = await start_peers(sandbox, testbed.url) if sandbox.full else []
    targets |= {peer.name: peer.target for peer in peers if peer.target is not None}
    calls_before, entries_before = (await testbed.fetch_counts()).call_count, int(postgres.run_sql(_COUNT))
    figures: dict[str, Figure] = {}
    call_count = governed_count = 0
    runs_by_level: dict[int, dict[str, TargetRuns]] = {}
    for connections in CONCURRENCY_LEVELS:
        sandbox.log(f"{connections} at once: rounds")
        runs_by_level[connections] = await run_rounds(
            targets,
            connections=connections,
            count=sandbox.pick_size(quick=3, full=9),
            seconds=sandbox.pick_size(quick=1, full=3),
        )
        figures |= build_figures(runs_by_level[connections], connections)
        call_count += sum(runs.requests for runs in runs_by_level[connections].values())
        governed_count += runs_by_level[connections]["deputize"].requests
    figures |= judge_counts(
        measured_count=call_count,
        reached_count=(await testbed.fetch_counts()).call_count - calls_before,
        governed_count=governed_count,
        entry_count=int(postgres.run_sql(_COUNT)) - entries_before,
    )
    figures["messages_per_call"] = round(await testbed.measure_messages_per_call(), 2)
    await restart_as_variant(testbed.gateway, "proxy_no_reuse")
    await wait_for_tools(testbed.gateway, testbed.token, f"{SERVER}__", 1)
    controls = {"a line made anew for every call": await testbed.measure_messages_per_call() > MAX_MESSAGES_PER_CALL}
    notes = [str(peer) for peer in peers]
    if peers:
        notes.append("Ahead in p99: of theirs, or of calls at once by calls per second, which is what callers wait.")
    figures |= compare_peers(runs_by_level, [peer.name for peer in peers if peer.target is not None])
    return Verdict(figures=figures, controls=controls, notes=notes)


def judge_counts(
    *, measured_count: int, reached_count: int, governed_count: int, entry_count: int
) -> dict[str, Figure]:
    """Count calls that did not reach the server, and governed ones without an audit entry.

    Calls that warm up are made and not counted, so there are more than were measured and never fewer.
    """
    return {
        "calls_not_reached": max(0, measured_count - reached_count),
        "calls_not_audited": max(0, governed_count - entry_count),
        "calls_governed": governed_count,
    }


def build_figures(runs_by_target: dict[str, TargetRuns], connections: int) -> dict[str, Figure]:
    figures: dict[str, Figure] = {
        f"p50_ratio_at_{connections}": round(compute_slowdown(runs_by_target["deputize"], runs_by_target["direct"]), 2)
    }
    for name, runs in runs_by_target.items():
        figures |= {
            f"{name}_p50_ms_at_{connections}": round(runs.p50_ms, 3),
            f"{name}_p99_ms_at_{connections}": round(runs.p99_ms, 3),
            f"{name}_per_second_at_{connections}": round(runs.per_second, 1),
            f"{name}_cpu_ms_at_{connections}": round(runs.cpu_ms_per_call, 3),
        }
    return figures


def compare_peers(runs_by_level: dict[int, dict[str, TargetRuns]], names: list[str]) -> dict[str, Figure]:
    """Compare with the best of the others in each respect; nothing where none of them could be started."""
    figures: dict[str, Figure] = {}
    for connections, runs in runs_by_level.items() if names else ():
        ours, theirs = runs["deputize"], [runs[name] for name in names]
        best_wait_ms = min(_compute_wait_ms(each, connections) for each in theirs)
        figures |= {
            f"per_second_of_best_peer_at_{connections}": round(
                ours.per_second / max(each.per_second for each in theirs), 3
            ),
            f"p99_of_best_peer_at_{connections}": round(ours.p99_ms / best_wait_ms, 3),
            f"cpu_of_best_peer_at_{connections}": round(
                ours.cpu_ms_per_call / min(each.cpu_ms_per_call for each in theirs), 3
            ),
        }
    return figures


def _compute_wait_ms(theirs: TargetRuns, connections: int) -> float:
    """What callers of another waited: its p99, or, where it serves some and leaves others without an answer, whose
    waiting is in no percentile, how long they all waited on average.
    """
    return max(theirs.p99_ms, 1000 * connections / theirs.per_second)
