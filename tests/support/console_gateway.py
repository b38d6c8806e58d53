"""A gateway with a console, a real OpenID provider where people sign in, and browsers with cookies and forms."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import httpx2
import pytest

from deputize.core.contract.tools import FlowTool, PythonTool
from deputize.core.settings import ConsoleSettings, IssuerSettings, McpServerSettings, ServiceSettings, Settings
from deputize.core.settings.runs import RunSettings
from deputize.govern.approvals.approval_codes import ApprovalCode
from deputize.govern.identity.dev_issuer import ISSUER as DEV_ISSUER
from proofs.kit.idp.provider import Provider, complete_sign_in
from proofs.kit.reserved_port import reserve_port
from proofs.kit.sandbox import Sandbox
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.approval_gateway import APPROVAL_POLICIES
from tests.support.shop_tools import TOOLS

CLIENT, SECRET = "deputize-console", "the client's secret, of some length"
PEOPLE: dict[str, dict[str, Any]] = {
    "bo": {"tenant": "dev", "groups": ["oncall"]},
    "lea": {"tenant": "dev", "groups": ["leads"]},
    "lou": {"tenant": "dev", "groups": ["leads"]},
    # Made the calls of these tests, and is on call as well.
    "ana": {"tenant": "dev", "groups": ["oncall"]},
    "guest": {"tenant": "dev", "groups": ["sales"]},
    "olaf": {"tenant": "other", "groups": ["oncall"]},
    "crowd": {
        "tenant": "dev",
        "groups": ["oncall", *(f"group-{number:04d}-{number * 7919:x}" for number in range(400))],
    },
    "mob": {"tenant": "dev", "groups": [f"group-{number}-{pow(3, number, 2**127):x}" for number in range(900)]},
}


@dataclass
class ConsoleGateway:
    """The gateway as people find it, and where they sign in; without a provider, the codes its terminal showed."""

    gateway: HttpGateway
    url: str
    provider: Provider | None = None
    codes: list[ApprovalCode] = field(default_factory=list)

    @asynccontextmanager
    async def open_browser(self, person: str = "") -> AsyncIterator["Browser"]:
        """A browser of its own, signed in if a name is given."""
        async with httpx2.AsyncClient(base_url=self.url, trust_env=False, timeout=60.0) as http:
            opened = Browser(console=self, http=http)
            if person:
                await opened.sign_in(person)
            yield opened

    async def request_approval(self, key: str, *, tool: str = "shop.delete_user", **arguments: Any) -> tuple[str, str]:
        """Make a call of ana's agent that waits for approval; return its id and its request's."""
        token = self.gateway.token("ana", agent="billing-bot")
        answer = await self.gateway.call(tool, arguments or {"id": 7}, key=key, token=token)
        assert answer.status_code == 202, answer.text
        told = answer.json()
        return told["call_id"], told["approval"]["approval_id"]

    async def wait_for_end(self, call_id: str) -> dict[str, Any]:
        """The call once it is over, which is when its events end."""
        headers = {"authorization": f"Bearer {self.gateway.token('ana', agent='billing-bot')}"}
        async with (
            asyncio.timeout(90),
            self.gateway.http.stream("GET", f"/v1/calls/{call_id}/events", headers=headers) as events,
        ):
            await events.aread()
        return await self.fetch_call(call_id)

    async def fetch_call(self, call_id: str) -> dict[str, Any]:
        answer = await self.gateway.get(f"/v1/calls/{call_id}", token=self.gateway.token("ana", agent="billing-bot"))
        told: dict[str, Any] = answer.json()
        return told


@dataclass
class Browser:
    console: ConsoleGateway
    http: httpx2.AsyncClient

    async def get(self, path: str) -> httpx2.Response:
        return await self.http.get(path)

    async def sign_in(self, person: str, to: str = "/console/approvals", **query: str) -> httpx2.Response:
        """From our page to the provider, through its pages, and back; the page that comes at last."""
        assert self.console.provider is not None
        first = await self.http.get("/console/sign-in", params={"to": to, **query})
        assert first.status_code == 303, first.text
        back = await complete_sign_in(self.http, first, person, f"{self.console.url}/console/callback")
        landed = await self.http.get(back)
        if landed.status_code != 303:
            return landed
        return await self.http.get(landed.headers["location"])

    async def post(self, path: str, form: Mapping[str, str], **headers: str) -> httpx2.Response:
        sent = {"origin": self.console.url, "sec-fetch-site": "same-origin"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, data=dict(form), headers={**sent, **named})

    async def fetch_form(self, request_id: str) -> dict[str, str]:
        """What the forms of a ticket's page send, before anybody types."""
        page = await self.get(f"/console/approvals/{request_id}")
        assert page.status_code == 200, page.text
        return parse_hidden_fields(page.text)

    async def decide(self, verb: str, request_id: str, reason: str = "") -> httpx2.Response:
        form = await self.fetch_form(request_id)
        return await self.post(f"/console/approvals/{request_id}/{verb}", {**form, "reason": reason})


def parse_hidden_fields(page: str) -> dict[str, str]:
    """The hidden fields of the form that decides."""
    form = page[page.index("/deny") :]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    return {name: unescape(value) for name, value in found}


def visible_text(page: httpx2.Response) -> str:
    """What a person reads."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page.text)))


@asynccontextmanager
async def open_console_gateway(
    dsn: str,
    folder: Path,
    *,
    codes: bool = False,
    servers: Sequence[McpServerSettings] = (),
    services: Sequence[ServiceSettings] = (),
    tools: Sequence[PythonTool | FlowTool] = (),
) -> AsyncIterator[ConsoleGateway]:
    """With a provider, or with codes."""
    port = reserve_port()
    url, told = f"http://127.0.0.1:{port}", list[ApprovalCode]()
    secret = folder / "client-secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    async with Sandbox() as world:
        provider = None if codes else await _start_provider(world, url)

        def change(settings: Settings) -> Settings:
            changes: dict[str, Any] = {
                "server": settings.server.model_copy(update={"port": port}),
                "identity": settings.identity.model_copy(update={"public_url": url}),
                "runs": RunSettings(poll_seconds=0.05, drain_seconds=1),
                "servers": tuple(servers),
                "services": tuple(services),
            }
            if provider is not None:
                issuer = IssuerSettings(
                    issuer=provider.issuer, audience="urn:api", tenant_claim="tenant", tenants=("*",), human=True,
                    same_subjects_as=DEV_ISSUER,
                )  # fmt: skip
                issuers = (*settings.identity.issuers, issuer)
                changes["identity"] = changes["identity"].model_copy(update={"issuers": issuers})
                changes["console"] = ConsoleSettings(
                    issuer=provider.issuer, client_id=CLIENT, client_secret_file=secret
                )
            return settings.model_copy(update=changes)

        opening = {"worker": True, "show_code": told.append if codes else None, "tools": (*TOOLS, *tools)}
        async with serve_gateway(dsn, folder, change=change, gateway_options=opening) as gateway:
            await _put_policies(gateway)
            yield ConsoleGateway(gateway=gateway, url=url, provider=provider, codes=told)


async def _start_provider(world: Sandbox, url: str) -> Provider:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, and the OpenID provider of this test comes through it")
    app = {
        "client_id": CLIENT, "client_secret": SECRET, "redirect_uris": [f"{url}/console/callback"],
        "grant_types": ["authorization_code"], "response_types": ["code"],
        "token_endpoint_auth_method": "client_secret_basic",
    }  # fmt: skip
    return await Provider.start(world, resources={}, accounts=PEOPLE, apps=[app])


async def _put_policies(gateway: HttpGateway) -> None:
    token = gateway.token("root", scopes=[ADMIN])
    put = await gateway.http.put(
        "/v1/policies",
        json={"files": [{"path": "asking.cedar", "text": APPROVAL_POLICIES}]},
        headers={"authorization": f"Bearer {token}"},
    )
    assert put.status_code == 200, put.text
