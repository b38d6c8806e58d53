"""What governing a call costs, as a share of what the same server does when it governs nothing.

One uvicorn with a raw ASGI echo, one with the gateway, the same body, 64 connections, rounds in turn: ratios in one
run, medians. The write is also held against PostgreSQL doing the same two batched transactions and nothing else.
"""

from collections.abc import Iterator

import orjson
from pydantic import SecretStr

from deputize.app import open_gateway
from deputize.catalog.importers.python import load_files
from deputize.core.call import CallRequest
from deputize.core.clock import Clock
from deputize.core.settings import Database, Identity, Keys, Settings, Tools
from deputize.core.settings import Issuer as IssuerSettings
from deputize.store.pool import WRITER, connect
from proofs.kit.bare import bare_postgres
from proofs.kit.companions import start_echo, start_sink
from proofs.kit.gateway import AUDIENCE, ISSUER, TOOLS, GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.load import Load, Target, http_load, paired_rounds
from proofs.kit.phases import phase_times
from proofs.kit.report import Bar, Verdict
from proofs.kit.world import World

NAME = "overhead"
PROMISE = "A governed call costs little more than the server it runs on."

ARGUMENTS = {
    "order_id": "3fa85f64-5717-4562-b3fc-2c963f66afa6",
    "customer": {"name": "Ann", "email": "ann@example.com", "phone": "+49 30 123456"},
    "items": [{"sku": f"SKU-{n}", "quantity": n + 1, "cents": 999} for n in range(8)],
}
GATES = {"read": 0.35, "write": 0.21, "read_traced": 0.9, "write_traced": 0.9, "write_against_postgres": 0.43}
# The quick form runs beside other work for seconds, so it only notices when something went badly wrong.
QUICK_SHARE = 0.25
ONE_PERCENT = '[telemetry]\ntrace_sample = 0.01\notlp_endpoint = "{}/v1/traces"\n'


async def prove(world: World) -> Verdict:
    postgres = await world.postgres()
    issuer = new_issuer()
    echo = http_load(Target(url=await start_echo(world), body=_body("orders.check"), headers=_headers(issuer)))
    plain = await start_gateway(world, postgres.dsn, issuer, name="plain", tools="orders.py")
    traced = await start_gateway(
        world,
        postgres.dsn,
        issuer,
        name="traced",
        tools="orders.py",
        settings=ONE_PERCENT.format(await start_sink(world)),
    )
    lonely = await start_gateway(world, postgres.dsn, issuer, name="lonely", tools="orders.py", batch_rows=1)
    bare = await bare_postgres(await connect(postgres.dsn, WRITER), tenant="acme")
    pairs: dict[str, tuple[Load, Load]] = {
        "read": (_read(plain), echo),
        "write": (_write(plain), echo),
        "read_traced": (_read(traced), _read(plain)),
        "write_traced": (_write(traced), _write(plain)),
        "write_against_postgres": (_write(plain), bare),
    }
    figures: dict[str, float | int | str] = {}
    for name, (ours, theirs) in pairs.items():
        world.say(f"{name}: rounds")
        seen = await paired_rounds(
            ours, theirs, rounds=world.size(quick=3, full=9), seconds=world.size(quick=1, full=2)
        )
        figures[name] = round(seen.median, 3)
        figures[f"{name}_spread"] = f"{seen.spread[0]:.3f}-{seen.spread[1]:.3f}"
        if name in ("read", "write"):
            figures[f"{name}_p50_ms"] = round(sorted(s.p50_ms for s in seen.a)[len(seen.a) // 2], 2)
    control = await paired_rounds(_write(lonely), echo, rounds=3, seconds=2)
    figures["write_without_group_commit"] = round(control.median, 3)
    figures |= await _by_phase(world, postgres.dsn, issuer)
    share = 1.0 if world.full else QUICK_SHARE
    bars: dict[str, Bar] = {name: (">=", round(gate * share, 3)) for name, gate in GATES.items()}
    return Verdict(
        figures=figures,
        bars=bars,
        # Against what was measured a moment ago, not against the gate: the quick form's bar is far below both.
        controls={"one row to a commit falls far below": control.median < 0.6 * float(figures["write"])},
    )


def _headers(issuer: Issuer) -> dict[str, str]:
    return {"authorization": f"Bearer {issuer.token('ana', agent='bot')}", "content-type": "application/json"}


def _body(tool: str) -> bytes:
    return orjson.dumps({"tool": tool, "arguments": ARGUMENTS})


def _read(gateway: GatewayHandle) -> Load:
    return http_load(
        Target(url=f"{gateway.url}/v1/calls", headers=_headers(gateway.issuer), body=_body("orders.check"))
    )


def _write(gateway: GatewayHandle) -> Load:
    target = Target(
        url=f"{gateway.url}/v1/calls",
        headers=_headers(gateway.issuer),
        body=_body("orders.place"),
        unique_keys=True,
    )
    return http_load(target)


async def _by_phase(world: World, dsn: str, issuer: Issuer) -> dict[str, float]:
    """CPU per phase of calls made one after another, in microseconds."""
    jwks = world.folder / "phases.jwks"
    jwks.write_text(issuer.jwks())
    settings = Settings(
        database=Database(url=SecretStr(dsn)),
        identity=Identity(
            issuers=(IssuerSettings(issuer=ISSUER, audience=AUDIENCE, jwks_file=jwks, tenant_claim="tenant"),)
        ),
        keys=Keys(master_file=world.folder / "master.key"),
        tools=Tools(tenant="acme"),
    )
    calls = world.size(quick=300, full=3000)
    found: dict[str, float] = {}
    async with open_gateway(settings, tools=load_files(["tools/orders.py"], TOOLS.parent)) as gateway:
        caller = await gateway.tokens.verify(issuer.token("ana", agent="bot").encode())
        for kind, tool in (("read", "orders.check"), ("write", "orders.place")):
            times = await phase_times(gateway, caller, _requests(tool, calls))
            found |= {f"cpu_us_{kind}_{phase}": cpu for phase, cpu in times.items()}
    return found


def _requests(tool: str, calls: int) -> Iterator[CallRequest]:
    clock = Clock()
    for _ in range(calls):
        yield CallRequest(tool=tool, arguments=ARGUMENTS, idempotency_key=clock.new_id())
