"""A whole gateway over real HTTP and a real PostgreSQL, shared by the tests of one module."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import jwt
import orjson
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize import app
from deputize.app import open_gateway
from deputize.core.clock import Clock
from deputize.core.hooks import LoadedHook
from deputize.core.settings import (
    DatabaseSettings,
    IssuerSettings,
    KeySettings,
    ServerSettings,
    Settings,
    TelemetrySettings,
    TimingSettings,
    ToolSettings,
)
from deputize.govern.identity.dev_issuer import mint_dev_token
from deputize.govern.limits import budgets
from deputize.interfaces.server import ListenUrls, serve
from deputize.operations.background import deprecation_reports, measurement_storage
from deputize.operations.gateway import Gateway
from tests.support import scripted_tools as lab_tools
from tests.support.gateway_lab import GatewayLab, open_lab
from tests.support.lossy_tools import TOOLS as LOSSY_TOOLS
from tests.support.operators import make_operator_identity
from tests.support.policies import open_policy
from tests.support.shop_tools import TOOLS

ADMIN = "deputize:admin"
SCOPES = ("shop:write", "shop:delete")
OTHER_ISSUER = "https://login.other.example"
# What the gateway calls itself in tokens; nobody has to be able to reach it there.
PUBLIC_URL = "https://gateway.example"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


@pytest.fixture(autouse=True, scope="module")
def _reset_scripted_tools() -> None:
    """What tools of the lab did and are told to do is one list for the whole process: each module begins with none."""
    lab_tools.effects.clear()
    lab_tools._behaviours.clear()
    lab_tools.previews.clear()


@pytest.fixture(autouse=True, scope="session")
def _allow_for_a_busy_machine() -> Iterator[None]:
    """Wait longer for what a busy machine does late: the first probe of MCP servers, and leases of budgets.

    What is counted in memory is stored when tests store it, and not in between by a background task.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "_SERVER_WAIT_SECONDS", 60.0)
        patch.setattr(budgets, "_LEASE_SECONDS", 60.0)
        patch.setattr(measurement_storage, "_INTERVAL_SECONDS", 3600.0)
        patch.setattr(deprecation_reports, "_INTERVAL_SECONDS", 3600.0)
        yield


@dataclass
class HttpGateway:
    """One running gateway, and tokens for its callers."""

    folder: Path
    settings: Settings
    other_key: Ed25519PrivateKey
    url: str = ""
    metrics_url: str = ""
    grpc_address: str | None = None
    in_process: Gateway | None = None
    http: httpx2.AsyncClient = field(default_factory=httpx2.AsyncClient)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_until_closed(self) -> None:
        """Return once no new connection is accepted."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        async with asyncio.timeout(90):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, int(port))
                except OSError:
                    return
                writer.close()
                await asyncio.sleep(0.02)

    def token(self, subject: str = "ana", *, scopes: Iterable[str] = SCOPES, **more: Any) -> str:
        """Of the development issuer, for tenant `dev` unless another is named."""
        return mint_dev_token(self.folder, subject=subject, scopes=scopes, **more)

    def other_token(self, subject: str = "olaf", *, scopes: Iterable[str] = SCOPES) -> str:
        """Of the second issuer, whose every token is of tenant `other`."""
        now = Clock().epoch_ms() // 1000
        claims = {
            "iss": OTHER_ISSUER, "aud": "deputize", "sub": subject, "iat": now, "exp": now + 3600,
            "auth_time": now, "jti": Clock().new_id(), "scope": " ".join(scopes),
        }  # fmt: skip
        return jwt.encode(claims, self.other_key, algorithm="EdDSA", headers={"kid": "other"})

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        token: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> httpx2.Response:
        sent = {"authorization": f"Bearer {token or self.token()}", **(headers or {})}
        if key is not None:
            sent["idempotency-key"] = key
        body = {"tool": tool, "arguments": dict(arguments or {}), **fields}
        return await self.http.post("/v1/calls", json=body, headers=sent)

    async def get(self, path: str, *, token: str | None = None, **params: Any) -> httpx2.Response:
        return await self.http.get(
            path, params=params or None, headers={"authorization": f"Bearer {token or self.token()}"}
        )

    async def load_receipt(self, call_id: str, token: str) -> dict[str, Any]:
        """Get a call's receipt as soon as a checkpoint covers the call."""
        async with asyncio.timeout(90):
            while True:
                answer = await self.get(f"/v1/calls/{call_id}/receipt", token=token)
                if answer.status_code != 409:
                    assert answer.status_code == 200, answer.text
                    receipt: dict[str, Any] = answer.json()
                    return receipt
                assert answer.json()["error"]["slug"] == "receipt-pending"
                assert answer.headers["retry-after"] == "1"
                await asyncio.sleep(0.05)

    async def post(self, path: str, body: Any = None, *, token: str | None = None) -> httpx2.Response:
        return await self.http.post(path, json=body, headers={"authorization": f"Bearer {token or self.token()}"})

    async def post_exchange(self, token: str | None = None, **fields: str | None) -> httpx2.Response:
        """To the agent `bot`, unless the fields say otherwise; a field of None is left out."""
        form = {
            "grant_type": TOKEN_EXCHANGE, "subject_token": token or self.token(), "subject_token_type": ACCESS_TOKEN,
            "agent": "bot",
        }  # fmt: skip
        sent = {name: value for name, value in {**form, **fields}.items() if value is not None}
        return await self.http.post("/oauth/token", data=sent)

    async def exchange_token(self, token: str | None = None, **fields: str | None) -> str:
        """The token of such an exchange."""
        answer = await self.post_exchange(token, **fields)
        assert answer.status_code == 200, answer.text
        made: str = answer.json()["access_token"]
        return made

    async def call_rpc(self, method: str, params: Any, *, token: str | None = None, id: Any = 1) -> Any:
        request = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        return (await self.post("/rpc", request, token=token)).json()


def gateway_settings(dsn: str, folder: Path, **server: Any) -> Settings:
    """Settings for a gateway of tests: free ports, the development issuer, and a second issuer of tenant `other`."""
    other = IssuerSettings(
        issuer=OTHER_ISSUER,
        audience="deputize",
        jwks_file=folder / "other.jwks.json",
        algorithms=("EdDSA",),
        tenant="other",
        operator=True,
    )
    return Settings(
        folder=folder,
        server=ServerSettings(port=0, metrics_port=0, **server),
        database=DatabaseSettings(url=dsn),  # type: ignore[arg-type]  # pydantic makes the secret of it
        identity=make_operator_identity(folder, other, public_url=PUBLIC_URL),
        keys=KeySettings(master_file=folder / "master.key"),
        tools=ToolSettings(shared_with=("other",)),
        policy=open_policy(folder),
        # A process that a busy machine does not let run for a while keeps its lease.
        timing=TimingSettings(lease_seconds=120, refresh_seconds=0.2),
        telemetry=TelemetrySettings(),
    )


def _write_other_issuer(folder: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    (folder / "other.jwks.json").write_bytes(orjson.dumps({"keys": [{**jwk, "kid": "other", "use": "sig"}]}))
    return key


@asynccontextmanager
async def serve_gateway(
    dsn: str,
    folder: Path,
    *,
    hooks: Sequence[LoadedHook] = (),
    change: Callable[[Settings], Settings] = lambda settings: settings,
    gateway_options: Mapping[str, Any] | None = None,
    **server: Any,
) -> AsyncIterator[HttpGateway]:
    """A gateway for as long as the block lasts, with the tools of `shop` registered for tenant `dev`. `opening` is what
    `open_gateway` is told beside its tools.
    """
    key = _write_other_issuer(folder)
    http_gateway = HttpGateway(folder=folder, settings=change(gateway_settings(dsn, folder, **server)), other_key=key)
    ready = asyncio.Event()

    @asynccontextmanager
    async def open_with_tools() -> AsyncIterator[Gateway]:
        told = {"tools": TOOLS, "hooks": hooks, "development": True, **(gateway_options or {})}
        async with open_gateway(http_gateway.settings, **told) as gateway:
            assert not gateway.startup_problems
            http_gateway.in_process = gateway
            yield gateway

    def on_ready(urls: ListenUrls) -> None:
        http_gateway.url, http_gateway.metrics_url, http_gateway.grpc_address = urls.api, urls.metrics, urls.grpc
        ready.set()

    running = asyncio.create_task(serve(open_with_tools, http_gateway.settings, on_ready, stop=http_gateway.stop))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    async with httpx2.AsyncClient(base_url=http_gateway.url, timeout=60) as http:
        http_gateway.http = http
        try:
            yield http_gateway
        finally:
            await http.aclose()
            http_gateway.stop.set()
            await running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    async with serve_gateway(module_database, tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def other_lab(lab: GatewayLab) -> AsyncIterator[GatewayLab]:
    """Another gateway beside `lab`: the one that dies, or the one that hears of things later."""
    async with open_lab(lab.dsn, lab.folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def lossy_lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("depot")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lossy_lab(module_database: str, lossy_lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lossy_lab_folder, tools=LOSSY_TOOLS) as opened:
        yield opened
