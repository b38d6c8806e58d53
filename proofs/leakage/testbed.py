"""A gateway, its worker, a server behind it, an approver and a receiver of webhooks; everything they say is kept."""

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from deputize.store.local_postgres import LocalPostgres
from proofs.kit.asgi_server import READY
from proofs.kit.gateway import RAISED_REQUEST_LIMITS, GatewayHandle, create_issuer, start_gateway, start_worker
from proofs.kit.helper_servers import start_sink
from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox
from proofs.kit.secret_patterns import copy_tables
from proofs.kit.sign_in_issuer import SignInIssuer
from proofs.leakage.channels import Channel
from proofs.leakage.planted_values import PlantedValue
from proofs.leakage.upstream_server import SERVICE_DOCUMENT

SESSION = "leakage-session"
_ROOT = Path(__file__).resolve().parents[2]
_CONCURRENT = 8
_TIMEOUT_SECONDS = 1800.0
_POLICIES = """
@id("open") permit (principal, action, resource);
@id("ask") @decision("ask") @approvers("oncall") forbid (principal, action, resource == Tool::"leakage.plead");
@id("scopes") forbid (principal, action, resource) when { context.scopes.contains("nothing") };
"""
_SETTINGS = """
[telemetry]
trace_sample = 1.0
log_level = "debug"
otlp_endpoint = "{sink}/v1/traces"

[webhooks]
hosts = ["127.0.0.1"]

[[servers]]
name = "quoting"
tenant = "acme"
url = "{server}/mcp"
reads = ["*"]
probe_seconds = 3600
recheck_seconds = 3600

[[services]]
name = "reporting"
tenant = "acme"
document = "{document}"
sha256 = "{digest}"
url = "{server}"
reads = ["*"]
"""
_UNFINISHED = """
select (select count(*) from deputize.calls where state in ('queued', 'running', 'awaiting_approval', 'yielded'))
     + (select count(*) from deputize.deliveries where due_at is not null)
"""


@dataclass(kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    gateway: GatewayHandle
    postgres: LocalPostgres
    people: SignInIssuer
    webhook_url: str
    webhooks: Path
    spans: Path
    errors: Path
    approvals: Path
    unexpected: int = 0

    async def send_all(self, plants: Sequence[tuple[Channel, PlantedValue]]) -> None:
        """Send every planted value through its channel, and wait until all calls and their reports have ended."""
        queue = list(reversed(plants))

        async def send_some() -> None:
            token = self.gateway.issuer.issue_token("ana", agent="bot")
            http = HttpConnection.for_url(self.gateway.url, token=token)
            person = HttpConnection.for_url(self.gateway.url, token=self.people.issue_token("bea", ("oncall",)))
            while queue:
                await self._send_call(http, person, *queue.pop())
            for each in (http, person):
                each.close()

        async with asyncio.timeout(_TIMEOUT_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENT):
                group.create_task(send_some())

    async def _send_call(
        self, http: HttpConnection, person: HttpConnection, channel: Channel, value: PlantedValue
    ) -> None:
        request: dict[str, Any] = {
            "tool": channel.tool,
            "arguments": channel.build_arguments(value),
            "session": SESSION,
            **channel.fields,
        }
        if channel.is_run:
            request |= {"mode": "async", "callback": {"url": self.webhook_url, "include_result": True}}
        answer = await http.post("/v1/calls", request, Idempotency_Key=self.gateway.issuer.clock.new_id())
        # The result is the caller's; an error goes through logs and support tickets.
        if answer.status != 200:
            _append(self.errors, answer.body)
        if answer.status != 200 and not channel.is_run and b'"error"' not in answer.body:
            self.unexpected += 1
            self.sandbox.log(f"{channel.name}: {answer.status} {answer.body[:300]!r}")
        if channel.is_run and answer.status != 202:
            self.unexpected += 1
            self.sandbox.log(f"{channel.name}: {answer.status} {answer.body[:300]!r}")
        elif channel.needs_approval:
            await self._approve(person, answer.json()["approval"]["approval_id"])

    async def _approve(self, person: HttpConnection, ticket: str) -> None:
        shown = await person.get(f"/v1/approvals/{ticket}")
        _append(self.approvals, shown.body)
        body = {"reason": "fine", "binding": shown.json()["binding"]}
        answer = await person.post(f"/v1/approvals/{ticket}/approve", body)
        if answer.status != 200:
            self.unexpected += 1
            self.sandbox.log(f"approve: {answer.status} {answer.body[:300]!r}")

    async def wait_for_end(self) -> None:
        """Wait until no call is open and every report was delivered."""
        connection: asyncpg.Connection[Any] = await asyncpg.connect(self.postgres.dsn)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                while True:
                    if not await connection.fetchval(_UNFINISHED):
                        return
                    await asyncio.sleep(0.1)
        finally:
            await connection.close()

    async def keep_pages(self) -> Path:
        """Keep what administrators and monitoring read: the audit and the metrics."""
        file = self.sandbox.folder / "pages"
        admin = HttpConnection.for_url(
            self.gateway.url, token=self.gateway.issuer.issue_token("root", scopes=("deputize:admin",))
        )
        _append(file, (await admin.get("/v1/audit/export?format=jsonl")).body)
        admin.close()
        metrics = HttpConnection.for_url(self.gateway.metrics_url)
        _append(file, (await metrics.get("/metrics")).body)
        metrics.close()
        return file

    async def collect_places(self) -> dict[str, list[Path]]:
        """Collect the files of every place that must show nothing; the gateway is stopped, so that all was sent."""
        pages = await self.keep_pages()
        await self.gateway.child.stop()
        tables = await copy_tables(self.postgres.dsn, self.sandbox.folder / "tables")
        logs = [each for name in ("gateway", "worker") for each in sorted(self.sandbox.folder.glob(f"{name}*.log"))]
        return {
            "logs": logs, "spans": [self.spans], "tables": sorted(tables.values()), "webhooks": [self.webhooks],
            "approval requests": [self.approvals], "errors": [self.errors], "audit and metrics": [pages],
        }  # fmt: skip


def _append(file: Path, body: bytes) -> None:
    with file.open("ab") as output:
        output.write(body + b"\n")


async def start_testbed(sandbox: Sandbox) -> Testbed:
    issuer, port = create_issuer(), sandbox.pick_free_port()
    files = {name: sandbox.folder / name for name in ("spans", "webhooks", "errors", "approvals")}
    for file in files.values():
        file.touch()
    argv = [sys.executable, "-m", "proofs.leakage.upstream_server"]
    postgres, server, sink, receiver = await asyncio.gather(
        sandbox.start_postgres(),
        sandbox.start_process("upstream", argv, cwd=_ROOT, ready_line=READY),
        start_sink(sandbox, keep=files["spans"]),
        start_sink(sandbox, keep=files["webhooks"], name="receiver"),
    )
    people = await SignInIssuer.start(sandbox, issuer, "acme")
    server_url = (await server.wait_for_line(READY)).partition(READY)[2].strip()
    document = sandbox.folder / "reporting.json"
    document.write_bytes(orjson.dumps(SERVICE_DOCUMENT))
    digest = hashlib.sha256(document.read_bytes()).hexdigest()
    settings = people.render_settings(f"http://127.0.0.1:{port}") + RAISED_REQUEST_LIMITS
    gateway = await start_gateway(
        sandbox, postgres.dsn, issuer, tools="leakage.py", policies=_POLICIES, port=port,
        settings=settings + _SETTINGS.format(sink=sink, server=server_url, document=document, digest=digest),
    )  # fmt: skip
    await start_worker(gateway)
    return Testbed(
        sandbox=sandbox, gateway=gateway, postgres=postgres, people=people, webhook_url=f"{receiver}/hook",
        spans=files["spans"], webhooks=files["webhooks"], errors=files["errors"], approvals=files["approvals"],
    )  # fmt: skip
