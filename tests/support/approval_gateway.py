"""A gateway over HTTP whose rules ask about some tools, and the people who sign in to decide about them."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from deputize.core.contract.tools import PythonTool
from deputize.core.settings import IssuerSettings, McpServerSettings, Settings
from deputize.core.settings.runs import RunSettings
from deputize.govern.approvals.approval_codes import ApprovalCode
from deputize.govern.identity.dev_issuer import ISSUER as DEV_ISSUER
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.shop_tools import TOOLS

PEOPLE_ISSUER, CONSOLE = "https://people.example", "deputize-console"
APPROVAL_POLICIES = """
@id("open")
permit (principal, action, resource) unless { resource in [Tool::"shop.delete_user", Tool::"shop.rename_user"] };

@id("deleting-asks")
@reason("Somebody looks before a user is gone.")
@decision("ask")
@approvers("oncall, leads")
permit (principal, action, resource == Tool::"shop.delete_user");

@id("renaming-asks-two")
@decision("ask")
@approvers("leads")
@quorum("2")
@step_up("hwk")
permit (principal, action, resource == Tool::"shop.rename_user");
"""


@dataclass
class ApprovalGateway:
    """The gateway, the codes its terminal showed, and tokens for people of any tenant."""

    gateway: HttpGateway
    key: Ed25519PrivateKey
    codes: list[ApprovalCode]

    def sign_token(
        self,
        name: str = "bo",
        *,
        groups: Iterable[str] = ("oncall",),
        ago: int = 5,
        audience: str = CONSOLE,
        tenant: str = "dev",
        **more: Any,
    ) -> str:
        """Make a token of a person who signed in so many seconds ago."""
        now = Clock().epoch_ms() // 1000
        claims = {
            "iss": PEOPLE_ISSUER, "aud": audience, "sub": name, "iat": now, "exp": now + 600, "jti": Clock().new_id(),
            "auth_time": now - ago, "groups": list(groups), "tenant": tenant, **more,
        }  # fmt: skip
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "people"})

    async def request_approval(self, tool: str = "shop.delete_user", *, key: str, **arguments: Any) -> dict[str, Any]:
        """A call that people are asked about, as it was answered."""
        answer = await self.gateway.call(tool, arguments or {"id": 7}, key=key)
        assert answer.status_code == 202, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def decide(
        self, verb: str, request_id: str, *, token: str, code: str | None = None, **fields: Any
    ) -> httpx2.Response:
        """Decide with the binding that is stored now, as its approver has read it, unless another is given."""
        if verb != "deny":
            fields.setdefault("binding", await self.read_binding(request_id))
        headers = {"authorization": f"Bearer {token}"} | ({} if code is None else {"deputize-code": code})
        return await self.gateway.http.post(f"/v1/approvals/{request_id}/{verb}", json=fields, headers=headers)

    async def read_binding(self, request_id: str) -> str:
        """Read the binding of a request, or of a call's newest one, from the database."""
        async with self.connect_database() as database:
            binding = await database.fetchval(
                "select binding from deputize.approvals where $1 in (id, call_id) order by id desc limit 1", request_id
            )
        return "0" * 64 if binding is None else bytes(binding).hex()

    async def fetch_request(self, request_id: str, *, token: str) -> dict[str, Any]:
        answer = await self.gateway.get(f"/v1/approvals/{request_id}", token=token)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    @asynccontextmanager
    async def connect_database(self) -> AsyncIterator[asyncpg.Connection]:
        url = self.gateway.settings.database.url
        assert url is not None
        connection = await asyncpg.connect(url.get_secret_value())
        try:
            yield connection
        finally:
            await connection.close()

    def find_code(self, request_id: str) -> str:
        """Read the newest code that the terminal showed for a request."""
        return [told.code for told in self.codes if told.approval_id == request_id][-1]


@asynccontextmanager
async def open_approval_gateway(
    dsn: str,
    folder: Path,
    *,
    codes: bool = True,
    rules: str = APPROVAL_POLICIES,
    tools: Sequence[PythonTool] = TOOLS,
    servers: Sequence[McpServerSettings] = (),
) -> AsyncIterator[ApprovalGateway]:
    key, shown = Ed25519PrivateKey.generate(), list[ApprovalCode]()
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    (folder / "people.jwks.json").write_bytes(orjson.dumps({"keys": [{**jwk, "kid": "people", "use": "sig"}]}))
    people = IssuerSettings(
        issuer=PEOPLE_ISSUER, audience="deputize", console_audience=CONSOLE, jwks_file=folder / "people.jwks.json",
        algorithms=("EdDSA",), tenant_claim="tenant", tenants=("*",), human=True, same_subjects_as=DEV_ISSUER,
    )  # fmt: skip

    def change(settings: Settings) -> Settings:
        identity = settings.identity.model_copy(update={"issuers": (*settings.identity.issuers, people)})
        runs = RunSettings(poll_seconds=0.05, drain_seconds=1)
        return settings.model_copy(update={"identity": identity, "runs": runs, "servers": tuple(servers)})

    opening = {"worker": True, "show_code": shown.append if codes else None, "tools": tools}
    async with serve_gateway(dsn, folder, change=change, gateway_options=opening) as gateway:
        root = gateway.token("root", scopes=[ADMIN])
        put = await gateway.http.put(
            "/v1/policies",
            json={"files": [{"path": "asking.cedar", "text": rules}]},
            headers={"authorization": f"Bearer {root}"},
        )
        assert put.status_code == 200, put.text
        yield ApprovalGateway(gateway=gateway, key=key, codes=shown)
