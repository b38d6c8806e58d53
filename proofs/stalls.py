"""Send documents that are cheap to write and costly to read, and measure how long the event loop is busy with each.

The figure is all processor time of the loop's thread during a request, so no stretch of it is longer.
"""

from collections.abc import Mapping
from pathlib import Path

import orjson

from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.sandbox import Sandbox

NAME = "stalls"
PROMISE = "No request keeps the event loop busy for long, whatever it contains."
FULL_ONLY = True
_VARIANT = "stalls_unbounded_documents"
_FULL_MS, _QUICK_MS = 50, 150
_MEGABYTE = 1_000_000
_SCOPES = ("proof:write", "deputize:admin")


async def prove(sandbox: Sandbox) -> Verdict:
    postgres = await sandbox.start_postgres()
    issuer = create_issuer()
    gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="effects.py")
    longest = await _measure_all(sandbox, gateway)
    await restart_as_variant(gateway, _VARIANT)
    control = await _measure_all(sandbox, gateway, only="many objects")
    worst, seconds = max(longest.items(), key=lambda each: each[1])
    limit_ms = sandbox.pick_size(quick=_QUICK_MS, full=_FULL_MS)
    figures: dict[str, Figure] = {
        "longest_stretch_ms": round(seconds * 1000, 1),
        "requests": len(longest),
        "control_longest_ms": round(max(control.values()) * 1000, 1),
    }
    bars: dict[str, Bar] = {"longest_stretch_ms": ("<=", limit_ms)}
    return Verdict(
        figures=figures,
        bars=bars,
        controls={_VARIANT: max(control.values()) * 1000 > limit_ms},
        notes=[f"the most processor time on the loop's thread: {worst}"],
    )


def _build_documents() -> Mapping[str, bytes]:
    """Build arguments within the size that a request may have."""
    return {
        "many objects": b"[" + b",".join([b"{}"] * (_MEGABYTE // 3)) + b"]",
        "many errors": b"[" + b",".join([b"0"] * 19_000) + b"]",
        "objects in the limit": b"[" + b",".join([b"{}"] * 19_000) + b"]",
        "floats": b"[" + b",".join([b"1.5"] * 19_000) + b"]",
        "wide": b"{" + b",".join(b'"%d":0' % each for each in range(19_000)) + b"}",
        "deep": b"[" * 60 + b"]" * 60,
        "too deep": b"[" * 400_000 + b"]" * 400_000,
        "a long number": b"1" * _MEGABYTE,
        "an infinite number": b"[" + b",".join([b"1e400"] * 100_000) + b"]",
        "combining marks": orjson.dumps("e" + "\u0301" * 450_000),
        "directions": orjson.dumps("\u202e\u200b" * 150_000),
        "escapes": b'"' + b"\\u0041" * 160_000 + b'"',
        "a long name": b'{"' + b"a_" * 450_000 + b'":1}',
    }


async def _measure_all(sandbox: Sandbox, gateway: GatewayHandle, *, only: str | None = None) -> dict[str, float]:
    connection = HttpConnection.for_url(gateway.url, token=gateway.issuer.issue_token("ann", scopes=_SCOPES))
    stretches: dict[str, float] = {}
    # The first requests load what later ones share.
    for _ in range(20):
        await connection.post("/v1/calls", {"tool": "effects.look", "arguments": {}})
    for name, document in _build_documents().items():
        if only is not None and name != only:
            continue
        for interface, path, body in _build_requests(document)[: 1 if only else None]:
            before = _read_loop_seconds(gateway.child.pid)
            answer = await connection.send("POST", path, headers={"content-type": "application/json"}, body=body)
            seconds = stretches[f"{name} over {interface}"] = _read_loop_seconds(gateway.child.pid) - before
            sandbox.log(f"{name} over {interface}: {answer.status}, {seconds * 1000:.1f} ms")
    connection.close()
    return stretches


def _build_requests(document: bytes) -> tuple[tuple[str, str, bytes], ...]:
    call = b'{"tool":"effects.look","arguments":{"label":' + document + b"}}"
    return (
        ("REST", "/v1/calls", call),
        ("JSON-RPC", "/rpc", b'{"jsonrpc":"2.0","id":1,"method":"calls.create","params":' + call + b"}"),
        ("policy checks", "/v1/policies/check", b'{"files":' + document + b"}"),
    )


def _read_loop_seconds(pid: int) -> float:
    """Read the processor time of a process's first thread, which runs its event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
