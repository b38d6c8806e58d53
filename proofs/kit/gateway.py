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
from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway_login import create_gateway_login, use_gateway_login
from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox

TOOLS = Path(__file__).parent.parent / "tools"
AUDIENCE = "proof-gateway"
ISSUER = "https://issuer.proof"
ALLOW_ALL_POLICY = '@id("open")\npermit (principal, action, resource);\n'
# Proofs perform administrative acts faster than people do; an environment variable leaves `[limits]` to each proof.
_MANY_ACTS = {"DEPUTIZE_LIMITS__ADMIN_ACTS_PER_SECOND": "10000", "DEPUTIZE_LIMITS__ADMIN_ACTS_AT_ONCE": "10000"}
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
tenants = ["*"]
operator = true
{settings}
"""


# For proofs that make more requests than the default limits allow one user or one address.
RAISED_REQUEST_LIMITS = """
[limits]
approval_requests_per_hour = 1000000
token_exchanges_per_minute = 1000000
failed_exchanges_per_minute = 1000000
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Issuer:
    """An identity provider of the proof's own; every tenant it names exists."""

    key: Ed25519PrivateKey
    clock: Clock = field(default_factory=Clock)

    def render_jwks(self) -> str:
        public = jwt.algorithms.OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**public, "kid": "proof", "alg": "EdDSA", "use": "sig"}]})

    def issue_token(
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
            "auth_time": now,
            "jti": token_id or self.clock.new_id(),
        }
        if agent:
            claims["act"] = {"sub": agent}
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "proof"})


def create_issuer() -> Issuer:
    return Issuer(key=Ed25519PrivateKey.generate())


@dataclass(kw_only=True, slots=True)
class GatewayHandle:
    """A running gateway. `restart` starts the same folder again, on the same port, as an operator would."""

    sandbox: Sandbox
    name: str
    folder: Path
    url: str
    metrics_url: str
    issuer: Issuer
    child: ChildProcess
    env: dict[str, str]

    async def restart(self) -> None:
        await self.child.stop()
        self.child = await _start_process(self.sandbox, self.name, self.folder, self.url, self.env)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayFiles:
    """Everything a gateway needs but a process."""

    folder: Path
    url: str
    metrics_url: str


class GatewayOptions(TypedDict, total=False):
    """`settings` is TOML appended to deputize.toml; `migrate_dsn` migrates around a proxy that `dsn` goes through.

    `tools` is a glob in `tool_folder`, which is `proofs/tools` unless a proof has tools of its own. `policies` are put
    in force for tenant `acme`; other tenants have the default set until they are given others.
    """

    tools: str
    tool_folder: Path
    settings: str
    migrate_dsn: str | None
    batch_rows: int
    policies: str
    port: int | None


async def prepare_gateway(
    sandbox: Sandbox, dsn: str, issuer: Issuer, *, name: str = "gateway", **options: Unpack[GatewayOptions]
) -> GatewayFiles:
    folder = sandbox.folder / name
    folder.mkdir()
    master_key_file = sandbox.folder / "master.key"
    if not master_key_file.exists():
        master_key_file.write_bytes(Clock().random_bytes(32))
        master_key_file.chmod(0o600)
        await upgrade_async(options.get("migrate_dsn") or dsn)
        await create_gateway_login(options.get("migrate_dsn") or dsn)
    _write_files(folder, issuer, options.get("policies", ALLOW_ALL_POLICY), options.get("tool_folder", TOOLS))
    port, metrics_port = options.get("port") or sandbox.pick_free_port(), sandbox.pick_free_port()
    settings_file = folder / "deputize.toml"
    # It contains the login of the database, which no program of a server may read.
    settings_file.touch(mode=0o600)
    settings_file.write_text(
        _SETTINGS.format(
            port=port,
            metrics=metrics_port,
            dsn=use_gateway_login(dsn),
            batch_rows=options.get("batch_rows", 500),
            master=master_key_file,
            tools=options.get("tools", "*.py"),
            issuer=ISSUER,
            audience=AUDIENCE,
            settings=options.get("settings", ""),
        )
    )
    url, metrics_url = (f"http://127.0.0.1:{each}" for each in (port, metrics_port))
    return GatewayFiles(folder=folder, url=url, metrics_url=metrics_url)


async def start_gateway(
    sandbox: Sandbox,
    dsn: str,
    issuer: Issuer,
    *,
    name: str = "gateway",
    env: dict[str, str] | None = None,
    **options: Unpack[GatewayOptions],
) -> GatewayHandle:
    """`env` is added to the process's own."""
    env = {**_MANY_ACTS, **(env or {})}
    files = await prepare_gateway(sandbox, dsn, issuer, name=name, **options)
    child = await _start_process(sandbox, name, files.folder, files.url, env)
    return GatewayHandle(
        sandbox=sandbox, name=name, folder=files.folder, url=files.url, metrics_url=files.metrics_url, issuer=issuer,
        child=child, env=env,
    )  # fmt: skip


async def start_worker(gateway: GatewayHandle, name: str = "worker") -> ChildProcess:
    """`deputize work` in the gateway's folder."""
    port = gateway.sandbox.pick_free_port()
    return await gateway.sandbox.start_process(
        name,
        [sys.executable, "-m", "deputize", "work"],
        env={**gateway.env, "DEPUTIZE_SERVER__METRICS_PORT": str(port)},
        cwd=gateway.folder,
        ready_url=f"http://127.0.0.1:{port}/readyz",
        timeout=120,
    )


async def put_policies(url: str, admin_token: str, text: str = ALLOW_ALL_POLICY) -> None:
    """For a tenant that only tokens name: its own administrator puts its policies."""
    http = HttpConnection.for_url(url, token=admin_token)
    body = json.dumps({"files": [{"path": "proof.cedar", "text": text}]}).encode()
    answer = await http.send("PUT", "/v1/policies", body=body)
    http.close()
    if answer.status != 200:
        raise RuntimeError(f"policies were not put: {answer.status} {answer.body!r}")


def _write_files(folder: Path, issuer: Issuer, policies: str, tool_folder: Path) -> None:
    (folder / "jwks.json").write_text(issuer.render_jwks())
    # A gateway loads only files of its own folder.
    shutil.copytree(tool_folder, folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "policies").mkdir()
    (folder / "policies" / "proof.cedar").write_text(policies)


async def _start_process(sandbox: Sandbox, name: str, folder: Path, url: str, env: dict[str, str]) -> ChildProcess:
    # A worker is a process of its own in proofs, to be killed and measured apart from the gateway.
    argv = [sys.executable, "-m", "deputize", "serve", "--no-worker"]
    return await sandbox.start_process(name, argv, env=env, cwd=folder, ready_url=f"{url}/readyz", timeout=120)
