"""A probed gateway, a hostile server behind it, and a measure around every request."""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proofs.kit.asgi_server import READY
from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_module, restart_as_variant
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.sandbox import Sandbox
from proofs.kit.sign_in_issuer import SignInIssuer
from proofs.stalls.hostile_peer import DOCUMENT, HostilePeer
from proofs.stalls.loop_probe import PROBE_FILE, ProbeReader

_ROOT = Path(__file__).resolve().parents[2]
_SCOPES = ("proof:write", "deputize:admin")
POLICIES = """
@id("open") permit (principal, action, resource);
@id("ask") @decision("ask") forbid (principal, action, resource == Tool::"stalls.wipe");
"""
# Its circuits stay closed: each answer is a failure.
_PEER = """
[[services]]
name = "peer"
tenant = "acme"
document = "{document}"
sha256 = "{digest}"
url = "{url}"
breaker = {{failure_threshold = 100, timeout_seconds = 1}}

[[servers]]
name = "peer_mcp"
tenant = "acme"
url = "{url}/mcp"
reads = ["*"]
breaker = {{failure_threshold = 100, timeout_seconds = 1}}
probe_seconds = 3600
recheck_seconds = 3600
"""
_SERVER = """
[[servers]]
name = "{name}"
tenant = "acme"
url = "{url}/{name}"
reads = ["*"]
probe_seconds = 3600
recheck_seconds = 3600
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One request: the longest stretch of the loop's thread, and the longest wait for another thread."""

    name: str
    status: int
    stretch_ms: float
    wait_ms: float


@dataclass(kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    gateway: GatewayHandle
    people: SignInIssuer
    server_url: str
    probe: ProbeReader
    measurements: list[Measurement] = field(default_factory=list)

    @classmethod
    async def start(cls, sandbox: Sandbox, servers: Sequence[str]) -> "Testbed":
        postgres, issuer = await sandbox.start_postgres(), create_issuer()
        argv = [sys.executable, "-m", "proofs.stalls.hostile_server"]
        child = await sandbox.start_process("hostile", argv, cwd=_ROOT, ready_line=READY)
        server_url = (await child.wait_for_line(READY, timeout=5)).partition(READY)[2].strip()
        people, port = await SignInIssuer.start(sandbox, issuer, "acme"), sandbox.pick_free_port()
        settings = people.render_settings(f"http://127.0.0.1:{port}")
        peer, document = HostilePeer(), sandbox.folder / "peer.json"
        document.write_bytes(orjson.dumps(DOCUMENT))
        digest = hashlib.sha256(document.read_bytes()).hexdigest()
        settings += _PEER.format(document=document, digest=digest, url=await peer.start())
        sandbox.add_cleanup(peer.close)
        settings += "".join(_SERVER.format(name=name, url=server_url) for name in servers)
        probe_file = sandbox.folder / "probe"
        probe = ProbeReader(probe_file)
        gateway = await start_gateway(
            sandbox, postgres.dsn, issuer, tools="stalls.py", policies=POLICIES, settings=settings, port=port,
            env={PROBE_FILE: str(probe_file), "PROOF_LEDGER": ""},
        )  # fmt: skip
        await restart_as_module(gateway, "proofs.stalls.probed_gateway")
        return cls(sandbox=sandbox, gateway=gateway, people=people, server_url=server_url, probe=probe)

    async def restart_as_variant(self, variant: str) -> None:
        """Serve the same folder by a variant that has the probe, too."""
        await restart_as_variant(self.gateway, variant)

    def take_measurements(self) -> list[Measurement]:
        """Take what was measured since this was asked last."""
        measurements, self.measurements = self.measurements, []
        return measurements

    async def declare(self, server: str, what: str, body: bytes) -> None:
        """Tell the hostile server what to send: its `tools`, its `result` or the `stream` before it."""
        connection = HttpConnection.for_url(self.server_url)
        await connection.send("PUT", f"/{server}/{what}", body=body)
        connection.close()

    async def measure(
        self,
        name: str,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        tenant: str = "acme",
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request and measure the gateway's loop until it is answered."""
        token = self.gateway.issuer.issue_token("ann", tenant=tenant, scopes=_SCOPES)
        connection = HttpConnection.for_url(self.gateway.url, token=None if headers and "cookie" in headers else token)
        self.probe.reset()
        try:
            response = await connection.send(method, path, headers=headers, body=body)
        finally:
            connection.close()
        stretch, wait = self.probe.read()
        each = Measurement(
            name=name, status=response.status, stretch_ms=round(stretch * 1000, 1), wait_ms=round(wait * 1000, 1)
        )
        self.measurements.append(each)
        self.sandbox.log(f"{name}: {each.status}, stretch {each.stretch_ms} ms, wait {each.wait_ms} ms")
        return response

    async def measure_json(self, name: str, method: str, path: str, value: Any, **options: Any) -> HttpResponse:
        """Send a value as JSON and measure."""
        return await self.measure(name, method, path, orjson.dumps(value), **options)

    def read_memory_mb(self, field_name: str = "VmRSS") -> float:
        """Read the resident memory of the gateway now, or its peak (`VmHWM`)."""
        status = Path(f"/proc/{self.gateway.child.pid}/status").read_text()
        return int(status.partition(f"{field_name}:")[2].split()[0]) / 1024
