"""An unmodified gateway for a proof: `deputize serve` in a folder of its own; the proof holds its issuer's key."""

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from deputize.store.migrate import upgrade_async
from proofs.kit.child import Child
from proofs.kit.wire import Line
from proofs.kit.world import World

TOOLS = Path(__file__).parent.parent / "tools"
AUDIENCE = "proof-gateway"
ISSUER = "https://issuer.proof"
OPEN = '@id("open")\npermit (principal, action, resource);\n'
_SETTINGS = """
[server]
port = {port}
metrics_port = {metrics}

[database]
url = "{dsn}"
batch_rows = {batch_rows}

[keys]
master_file = "{master}"

[policy]
files = ["policies/*.cedar"]

[tools]
python = ["tools/{tools}"]
tenant = "acme"
shared_with = ["*"]

[[identity.issuers]]
issuer = "{issuer}"
audience = "{audience}"
jwks_file = "jwks.json"
tenant_claim = "tenant"
{settings}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Issuer:
    """An identity provider of the proof's own; every tenant it names exists."""

    key: Ed25519PrivateKey
    clock: Clock = field(default_factory=Clock)

    def jwks(self) -> str:
        public = jwt.algorithms.OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**public, "kid": "proof", "alg": "EdDSA", "use": "sig"}]})

    def token(
        self,
        user: str,
        *,
        tenant: str = "acme",
        agent: str | None = None,
        scopes: tuple[str, ...] = ("proof:write",),
        token_id: str | None = None,
        minutes: int = 120,
    ) -> str:
        now = self.clock.epoch_ms() // 1000
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": user,
            "tenant": tenant,
            "scope": " ".join(scopes),
            "iat": now,
            "exp": now + 60 * minutes,
            "jti": token_id or self.clock.new_id(),
        }
        if agent:
            claims["act"] = {"sub": agent}
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "proof"})


def new_issuer() -> Issuer:
    return Issuer(key=Ed25519PrivateKey.generate())


@dataclass(kw_only=True, slots=True)
class GatewayHandle:
    """A running gateway. `restart` starts the same folder again, on the same port, as an operator would."""

    world: World
    name: str
    folder: Path
    url: str
    metrics_url: str
    issuer: Issuer
    child: Child
    env: dict[str, str]

    async def restart(self) -> None:
        await self.child.stop()
        self.child = await _start(self.world, self.name, self.folder, self.url, self.env)


@dataclass(frozen=True, kw_only=True, slots=True)
class Furnished:
    """Everything a gateway needs but a process."""

    folder: Path
    url: str
    metrics_url: str


class Furniture(TypedDict, total=False):
    """`settings` is TOML appended to deputize.toml; `migrate_dsn` migrates around a proxy that `dsn` goes through.

    `policies` are put in force for tenant `acme`; other tenants have the default set until they are given others.
    """

    tools: str
    settings: str
    migrate_dsn: str | None
    batch_rows: int
    policies: str
    port: int | None


async def furnish_gateway(
    world: World, dsn: str, issuer: Issuer, *, name: str = "gateway", **more: Unpack[Furniture]
) -> Furnished:
    folder = world.folder / name
    folder.mkdir()
    master = world.folder / "master.key"
    if not master.exists():
        master.write_bytes(Clock().random_bytes(32))
        master.chmod(0o600)
        await upgrade_async(more.get("migrate_dsn") or dsn)
    _furnish(folder, issuer, more.get("policies", OPEN))
    port, metrics = more.get("port") or world.free_port(), world.free_port()
    (folder / "deputize.toml").write_text(
        _SETTINGS.format(
            port=port,
            metrics=metrics,
            dsn=dsn,
            batch_rows=more.get("batch_rows", 500),
            master=master,
            tools=more.get("tools", "*.py"),
            issuer=ISSUER,
            audience=AUDIENCE,
            settings=more.get("settings", ""),
        )
    )
    url, metrics_url = (f"http://127.0.0.1:{each}" for each in (port, metrics))
    return Furnished(folder=folder, url=url, metrics_url=metrics_url)


async def start_gateway(
    world: World,
    dsn: str,
    issuer: Issuer,
    *,
    name: str = "gateway",
    env: dict[str, str] | None = None,
    **more: Unpack[Furniture],
) -> GatewayHandle:
    """`env` is added to the process's own."""
    made = await furnish_gateway(world, dsn, issuer, name=name, **more)
    child = await _start(world, name, made.folder, made.url, env or {})
    return GatewayHandle(
        world=world, name=name, folder=made.folder, url=made.url, metrics_url=made.metrics_url, issuer=issuer,
        child=child, env=env or {},
    )  # fmt: skip


async def start_worker(gateway: GatewayHandle, name: str = "worker") -> Child:
    """`deputize work` in the gateway's folder."""
    port = gateway.world.free_port()
    return await gateway.world.start(
        name,
        [sys.executable, "-m", "deputize", "work"],
        env={**gateway.env, "DEPUTIZE_SERVER__METRICS_PORT": str(port)},
        cwd=gateway.folder,
        ready_url=f"http://127.0.0.1:{port}/readyz",
        timeout=120,
    )


async def put_policies(url: str, admin_token: str, text: str = OPEN) -> None:
    """For a tenant that only tokens name: its own administrator puts its policies."""
    line = Line.to(url, token=admin_token)
    body = json.dumps({"files": [{"path": "proof.cedar", "text": text}]}).encode()
    answer = await line.send("PUT", "/v1/policies", body=body)
    line.close()
    if answer.status != 200:
        raise RuntimeError(f"policies were not put: {answer.status} {answer.body!r}")


def _furnish(folder: Path, issuer: Issuer, policies: str) -> None:
    (folder / "jwks.json").write_text(issuer.jwks())
    # A gateway loads only files of its own folder.
    shutil.copytree(TOOLS, folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "policies").mkdir()
    (folder / "policies" / "proof.cedar").write_text(policies)


async def _start(world: World, name: str, folder: Path, url: str, env: dict[str, str]) -> Child:
    argv = [sys.executable, "-m", "deputize", "serve"]
    return await world.start(name, argv, env=env, cwd=folder, ready_url=f"{url}/readyz", timeout=120)
