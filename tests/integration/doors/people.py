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
from deputize.core.definition import PythonTool
from deputize.core.run_settings import Runs
from deputize.core.settings import Issuer, McpServer, Settings
from deputize.govern.approvals.codes import Told
from tests.integration.conftest import ADMIN, Served, serving
from tests.integration.shop import TOOLS

PEOPLE, CONSOLE = "https://people.example", "deputize-console"
ASKING = """
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
class Office:
    """The gateway, the codes its terminal showed, and tokens for people of any tenant."""

    served: Served
    key: Ed25519PrivateKey
    codes: list[Told]

    def person(
        self,
        name: str = "bo",
        *,
        groups: Iterable[str] = ("oncall",),
        ago: int = 5,
        audience: str = CONSOLE,
        tenant: str = "dev",
        **more: Any,
    ) -> str:
        """A token of somebody who signed in so many seconds ago."""
        now = Clock().epoch_ms() // 1000
        claims = {
            "iss": PEOPLE, "aud": audience, "sub": name, "iat": now, "exp": now + 600, "jti": Clock().new_id(),
            "auth_time": now - ago, "groups": list(groups), "tenant": tenant, **more,
        }  # fmt: skip
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "people"})

    async def asked(self, tool: str = "shop.delete_user", *, key: str, **arguments: Any) -> dict[str, Any]:
        """A call that people are asked about, as it was answered."""
        answer = await self.served.call(tool, arguments or {"id": 7}, key=key)
        assert answer.status_code == 202, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def decide(
        self, word: str, ticket: str, *, token: str, code: str | None = None, **said: Any
    ) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token}"} | ({} if code is None else {"deputize-code": code})
        return await self.served.http.post(f"/v1/approvals/{ticket}/{word}", json=said, headers=headers)

    async def show(self, ticket: str, *, token: str) -> dict[str, Any]:
        answer = await self.served.get(f"/v1/approvals/{ticket}", token=token)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    @asynccontextmanager
    async def database(self) -> AsyncIterator[asyncpg.Connection]:
        url = self.served.settings.database.url
        assert url is not None
        connection = await asyncpg.connect(url.get_secret_value())
        try:
            yield connection
        finally:
            await connection.close()

    def code(self, ticket: str) -> str:
        """The newest code the terminal showed for a ticket."""
        return [told.code for told in self.codes if told.ticket_id == ticket][-1]


@asynccontextmanager
async def open_office(
    dsn: str,
    folder: Path,
    *,
    codes: bool = True,
    rules: str = ASKING,
    tools: Sequence[PythonTool] = TOOLS,
    servers: Sequence[McpServer] = (),
) -> AsyncIterator[Office]:
    key, shown = Ed25519PrivateKey.generate(), list[Told]()
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    (folder / "people.jwks.json").write_bytes(orjson.dumps({"keys": [{**jwk, "kid": "people", "use": "sig"}]}))
    people = Issuer(
        issuer=PEOPLE, audience="deputize", console_audience=CONSOLE, jwks_file=folder / "people.jwks.json",
        algorithms=("EdDSA",), tenant_claim="tenant", human=True,
    )  # fmt: skip

    def change(settings: Settings) -> Settings:
        identity = settings.identity.model_copy(update={"issuers": (*settings.identity.issuers, people)})
        runs = Runs(poll_seconds=0.05, drain_seconds=1)
        return settings.model_copy(update={"identity": identity, "runs": runs, "servers": tuple(servers)})

    opening = {"worker": True, "tell_code": shown.append if codes else None, "tools": tools}
    async with serving(dsn, folder, change=change, opening=opening) as served:
        root = served.token("root", scopes=[ADMIN])
        put = await served.http.put(
            "/v1/policies",
            json={"files": [{"path": "asking.cedar", "text": rules}]},
            headers={"authorization": f"Bearer {root}"},
        )
        assert put.status_code == 200, put.text
        yield Office(served=served, key=key, codes=shown)
