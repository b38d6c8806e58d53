"""What governing a call costs, as a share of what the same server does when it governs nothing.

One uvicorn with a raw ASGI echo, one with the gateway, the same body, 64 connections, rounds in turn: ratios in one
run, medians. The write is also held against PostgreSQL doing the same two batched transactions and nothing else.
"""

from collections.abc import Iterator, Mapping

import orjson
from pydantic import SecretStr

from deputize.app import open_gateway
from deputize.core.call import CallRequest
from deputize.core.clock import Clock
from deputize.core.settings import DatabaseSettings, IdentitySettings, KeySettings, Settings, ToolSettings
from deputize.core.settings import IssuerSettings as IssuerSettings
from deputize.interfaces.cli.local.tool_loader import load_tool_files
from deputize.store.pool import WRITER, connect_with_role
from proofs.kit.gateway import AUDIENCE, ISSUER, TOOLS, GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.helper_servers import start_echo, start_sink
from proofs.kit.load import Load, PairedSamples, Target, make_http_load, run_paired_rounds
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.overhead.bare_postgres import make_postgres_load
from proofs.overhead.phase_timing import measure_phase_times

NAME = "overhead"
PROMISE = "A governed call costs little more than the server it runs on."

ARGUMENTS = {
    "order_id": "3fa85f64-5717-4562-b3fc-2c963f66afa6",
    "customer": {"name": "Ann", "email": "ann@example.com", "phone": "+49 30 123456"},
    "items": [{"sku": f"SKU-{n}", "quantity": n + 1, "cents": 999} for n in range(8)],
}
TRACE_ONE_PERCENT = '[telemetry]\ntrace_sample = 0.01\notlp_endpoint = "{}/v1/traces"\n'


async def prove(sandbox: Sandbox) -> Verdict:
    postgres = await sandbox.start_postgres()
    issuer = create_issuer()
    echo = make_http_load(
        Target(url=await start_echo(sandbox), body=_build_body("orders.check"), headers=_build_headers(issuer))
    )
    plain_gateway = await start_gateway(sandbox, postgres.dsn, issuer, name="plain", tools="orders.py")
    traced_gateway = await start_gateway(
        sandbox,
        postgres.dsn,
        issuer,
        name="traced",
        tools="orders.py",
        settings=TRACE_ONE_PERCENT.format(await start_sink(sandbox)),
    )
    unbatched_gateway = await start_gateway(
        sandbox, postgres.dsn, issuer, name="lonely", tools="orders.py", batch_rows=1
    )
    postgres_load = await make_postgres_load(await connect_with_role(postgres.dsn, WRITER), tenant="acme")
    pairs: dict[str, tuple[Load, Load]] = {
        "read": (_make_read_load(plain_gateway), echo),
        "write": (_make_write_load(plain_gateway), echo),
        "read_traced": (_make_read_load(traced_gateway), _make_read_load(plain_gateway)),
        "write_traced": (_make_write_load(traced_gateway), _make_write_load(plain_gateway)),
        "write_against_postgres": (_make_write_load(plain_gateway), postgres_load),
    }
    samples: dict[str, PairedSamples] = {}
    for name, (ours, theirs) in pairs.items():
        sandbox.log(f"{name}: rounds")
        samples[name] = await run_paired_rounds(
            ours, theirs, rounds=sandbox.pick_size(quick=3, full=9), seconds=sandbox.pick_size(quick=1, full=2)
        )
    unbatched = await run_paired_rounds(_make_write_load(unbatched_gateway), echo, rounds=3, seconds=2)
    return build_verdict(samples, unbatched, await _measure_phases(sandbox, postgres.dsn, issuer))


def build_verdict(
    samples: Mapping[str, PairedSamples], unbatched: PairedSamples, phases: Mapping[str, float]
) -> Verdict:
    """Build the figures of each pair of loads, and compare a writer without group commit with ours."""
    figures: dict[str, Figure] = {}
    for name, paired in samples.items():
        figures[name] = round(paired.median, 3)
        figures[f"{name}_spread"] = f"{paired.spread[0]:.3f}-{paired.spread[1]:.3f}"
        if name in ("read", "write"):
            figures[f"{name}_p50_ms"] = round(sorted(s.p50_ms for s in paired.a)[len(paired.a) // 2], 2)
    figures["write_without_group_commit"] = round(unbatched.median, 3)
    return Verdict(
        figures={**figures, **phases},
        # Against what was measured a moment ago, not against the gate: the quick form's bar is far below both.
        controls={"one row to a commit falls far below": unbatched.median < 0.6 * float(figures["write"])},
    )


def _build_headers(issuer: Issuer) -> dict[str, str]:
    return {"authorization": f"Bearer {issuer.issue_token('ana', agent='bot')}", "content-type": "application/json"}


def _build_body(tool: str) -> bytes:
    return orjson.dumps({"tool": tool, "arguments": ARGUMENTS})


def _make_read_load(gateway: GatewayHandle) -> Load:
    return make_http_load(
        Target(url=f"{gateway.url}/v1/calls", headers=_build_headers(gateway.issuer), body=_build_body("orders.check"))
    )


def _make_write_load(gateway: GatewayHandle) -> Load:
    target = Target(
        url=f"{gateway.url}/v1/calls",
        headers=_build_headers(gateway.issuer),
        body=_build_body("orders.place"),
        unique_keys=True,
    )
    return make_http_load(target)


async def _measure_phases(sandbox: Sandbox, dsn: str, issuer: Issuer) -> dict[str, float]:
    """CPU per phase of calls made one after another, in microseconds."""
    jwks = sandbox.folder / "phases.jwks"
    jwks.write_text(issuer.render_jwks())
    settings = Settings(
        database=DatabaseSettings(url=SecretStr(dsn)),
        identity=IdentitySettings(
            issuers=(
                IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=jwks, tenant_claim="tenant", tenants=("*",)),
            )
        ),
        keys=KeySettings(master_file=sandbox.folder / "master.key"),
        tools=ToolSettings(tenant="acme"),
    )
    calls = sandbox.pick_size(quick=300, full=3000)
    figures: dict[str, float] = {}
    async with open_gateway(settings, tools=load_tool_files(["tools/orders.py"], [], TOOLS.parent).tools) as gateway:
        caller = await gateway.authenticate(f"Bearer {issuer.issue_token('ana', agent='bot')}".encode())
        for kind, tool in (("read", "orders.check"), ("write", "orders.place")):
            times = await measure_phase_times(gateway, caller, _generate_requests(tool, calls))
            figures |= {f"cpu_us_{kind}_{phase}": cpu for phase, cpu in times.items()}
    return figures


def _generate_requests(tool: str, calls: int) -> Iterator[CallRequest]:
    clock = Clock()
    for _ in range(calls):
        yield CallRequest(tool=tool, arguments=ARGUMENTS, idempotency_key=clock.new_id())
