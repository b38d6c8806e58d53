"""The place of the proof: an OpenID provider, one gateway that trusts it, an upstream that trusts the gateway."""

import asyncio
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from deputize.core.settings.urls import SIGN_IN_CALLBACK_PATH
from deputize.interfaces.console.cookies import SESSION
from deputize.store.local_postgres import LocalPostgres
from proofs.confused_deputy import stdio_server
from proofs.kit.gateway import (
    ALLOW_ALL_POLICY,
    ISSUER,
    RAISED_REQUEST_LIMITS,
    GatewayHandle,
    Issuer,
    create_issuer,
    start_gateway,
)
from proofs.kit.helper_servers import start_sink, start_upstream
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.idp.install import install_package
from proofs.kit.idp.provider import Provider, Resource, complete_sign_in, create_browser
from proofs.kit.sandbox import Sandbox
from proofs.kit.upstream_server import REQUESTS_FILE
from proofs.tools.deputy import AUDIENCE, SECRET

TENANT, OTHER_TENANT, UNKNOWN_TENANT = "acme", "beside", "nowhere"
ADMIN, ADMIN_BESIDE = "admin", "admin-beside"
# Who is asked about calls, who may break the glass, and whoever is asked beside.
APPROVER, BREAK_GLASS_USERS, APPROVER_BESIDE = "oncall-0", ("glazier-0", "glazier-1"), "oncall-beside"
# People and agents whose authority is taken back in the course of the proof.
REVOKED_USERS, REVOKED_AGENTS = (
    ("gone-token", "gone-user", "gone-subject", "gone-lender"),
    ("gone-agent", "gone-subject-agent"),
)
SCOPES = ("proof:write", "deputize:admin", "deputize:undo")
BREAK_GLASS_SCOPE = "deputize:break-glass"
FOREIGN_ORIGIN = "https://elsewhere.proof"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
SHARED_TOOLS = ("whoami_upstream", "keyed", "look")
_RESOURCES = {"RS256": "urn:proof:gateway", "ES256": "urn:proof:gateway:es", "EdDSA": "urn:proof:gateway:ed"}
_OTHER_RESOURCE, _CONSOLE_RESOURCE = "urn:proof:elsewhere", "urn:proof:console"
_CONSOLE, _CONSOLE_APP = "https://console.proof", "console"
POLICIES = f"""{ALLOW_ALL_POLICY}
@id("pleading-asks")
@decision("ask")
@approvers("oncall")
forbid (principal, action == Action::"call", resource == Tool::"deputy.plead");
"""
SERVER_NAME = "confessional"
# Called before anything is switched off.
SWITCHED_TOOL = "deputy.slip"
OTHER_ISSUER = "https://other.proof"
_SETTINGS = """
[[identity.issuers]]
issuer = "{idp}"
audience = "{url}"
console_audience = "{console}"
human = true
operator = true
tenant_claim = "tenant"
tenants = ["*"]
same_subjects_as = "{people}"

[console]
issuer = "{idp}"
client_id = "{app}"
session_seconds = 43200
groups = [{{ group = "admins", role = "administrator", scopes = ["proof:write"], tenants = "{here}" }}]

[[identity.issuers]]
issuer = "{other}"
audience = "{url}"
jwks_file = "{other_keys}"
tenant = "{nowhere}"

[identity]
public_url = "{url}"

[runs]
reconcile_after_seconds = 0
reconcile_seconds = 0.2
reconcile_tries = 1

[webhooks]
hosts = ["127.0.0.1"]
attempts = 1

[telemetry]
trace_sample = 1.0
otlp_endpoint = "{sink}/v1/traces"
log_level = "debug"

# Nothing that it declares is agreed to, and it is looked at only when somebody asks.
[[servers]]
name = "{server}"
tenant = "{here}"
command = ["{python}", "{program}"]
accept_risk = ["same-user", "unpinned"]
review = "everything"
probe_seconds = 3600
"""


@dataclass(kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    gateway: GatewayHandle
    idp: Provider
    postgres: LocalPostgres
    upstream: str
    sink: str
    records: Path
    spans: Path
    other: Issuer
    secrets: Mapping[str, str]
    """The vault's secret of each tenant, by tenant."""
    inbound: dict[str, str] = field(default_factory=dict)
    """Every token that was ever shown to the gateway as good, by whose it is."""
    sessions: dict[str, str] = field(default_factory=dict)
    """What browsers keep of those who signed in at the console."""

    @property
    def url(self) -> str:
        return self.gateway.url

    async def sign_in_user(self, name: str, *scopes: str, algorithm: str = "RS256") -> str:
        tokens = await self.idp.sign_in(name, _RESOURCES[algorithm], *scopes)
        return self._remember_token(f"{name} by {algorithm}", tokens.access_token)

    async def fetch_id_token(self, name: str) -> str:
        return (await self.idp.sign_in(name, _RESOURCES["RS256"], "proof:write")).id_token

    async def fetch_foreign_token(self, name: str) -> str:
        """As real as any, for another service of the same provider."""
        return (await self.idp.sign_in(name, _OTHER_RESOURCE, *SCOPES)).access_token

    async def fetch_console_token(self, name: str, *scopes: str) -> str:
        """A person's token for the console, with which they decide about what others asked for."""
        tokens = await self.idp.sign_in(name, _CONSOLE_RESOURCE, *scopes)
        return self._remember_token(f"{name} who decides", tokens.access_token)

    async def fetch_agent_console_token(self, name: str) -> str:
        return await self.idp.request_agent_token(name, _CONSOLE_RESOURCE)

    async def create_session(self, name: str) -> str:
        """Someone signs in at the console, in a browser of their own: what it keeps of that."""
        async with create_browser(self.url) as browser:
            first = await browser.get("/console/sign-in")
            callback_url = await complete_sign_in(browser, first, name, f"{self.url}{SIGN_IN_CALLBACK_PATH}")
            page = await browser.get(callback_url)
            session_cookie = browser.cookies.get(SESSION)
        if session_cookie is None:
            raise RuntimeError(f"{name} could not sign in at the console: {page.status_code} {page.text[:500]}")
        self.sessions[f"{name} ({len(self.sessions)})"] = session_cookie
        return session_cookie

    async def fetch_agent_token(self, name: str, *scopes: str) -> str:
        return self._remember_token(
            f"{name} itself", await self.idp.request_agent_token(name, _RESOURCES["RS256"], *scopes)
        )

    async def delegate(self, http: HttpConnection, subject_token: str, actor_token: str, **more: str) -> str:
        """The user's authority in the agent's hands: RFC 8693, as a client would ask for it."""
        answer = await self.exchange_token(http, subject_token, actor_token, **more)
        if answer.status != 200:
            raise RuntimeError(f"an exchange was refused: {answer.status} {answer.body[:500]!r}")
        token = str(answer.json()["access_token"])
        return self._remember_token(f"delegation {len(self.inbound)}", token)

    async def exchange_token(
        self, http: HttpConnection, subject_token: str, actor_token: str, **more: str
    ) -> HttpResponse:
        form = {**build_exchange_form(), "subject_token": subject_token, "actor_token": actor_token, **more}
        headers = {"content-type": "application/x-www-form-urlencoded"}
        return await http.send("POST", "/oauth/token", headers=headers, body=urlencode(form).encode())

    def _remember_token(self, whose: str, token: str) -> str:
        self.inbound[whose if whose not in self.inbound else f"{whose} ({len(self.inbound)})"] = token
        return token


def build_exchange_form() -> dict[str, str]:
    return {
        "grant_type": EXCHANGE,
        "subject_token_type": ACCESS_TOKEN,
        "actor_token_type": ACCESS_TOKEN,
        "scope": "proof:write",
    }


async def start_testbed(sandbox: Sandbox, *, users: int, agents: int) -> Testbed:
    # Before anything else is started, for it may be impossible here.
    await install_package(sandbox)
    port, records, spans = sandbox.pick_free_port(), sandbox.folder / "upstream", sandbox.folder / "spans.bin"
    url = f"http://127.0.0.1:{port}"
    own_resources = {name: Resource(audience=url, algorithm=algorithm) for algorithm, name in _RESOURCES.items()}
    idp, postgres, sink, upstream = await asyncio.gather(
        Provider.start(
            sandbox,
            resources={
                **own_resources,
                _OTHER_RESOURCE: Resource(audience=FOREIGN_ORIGIN),
                _CONSOLE_RESOURCE: Resource(audience=_CONSOLE),
            },
            accounts=_build_accounts(users, agents),
            agents=[*(f"agent-{number}" for number in range(agents)), *REVOKED_AGENTS, "agent-beside"],
            scopes=(*SCOPES, BREAK_GLASS_SCOPE),
            apps=[_build_console_app(url)],
        ),
        sandbox.start_postgres(),
        start_sink(sandbox, keep=spans),
        start_upstream(sandbox, records, trust=url, audience=AUDIENCE),
    )
    other = create_issuer()
    (sandbox.folder / "other.json").write_text(other.render_jwks())
    settings = _SETTINGS.format(
        idp=idp.issuer,
        url=url,
        other=OTHER_ISSUER,
        other_keys=sandbox.folder / "other.json",
        nowhere=UNKNOWN_TENANT, people=ISSUER, sink=sink, console=_CONSOLE, app=_CONSOLE_APP,
        server=SERVER_NAME,
        here=TENANT,
        python=sys.executable,
        program=stdio_server.__file__,
    )  # fmt: skip
    gateway = await start_gateway(
        sandbox, postgres.dsn, create_issuer(), tools="deputy.py", settings=settings + RAISED_REQUEST_LIMITS,
        port=port, policies=POLICIES, env={"PROOF_UPSTREAM": upstream},
    )  # fmt: skip
    vault_secrets = {tenant: f"vault-{tenant}-{secrets.token_urlsafe(24)}" for tenant in (TENANT, OTHER_TENANT)}
    testbed = Testbed(
        sandbox=sandbox, gateway=gateway, idp=idp, postgres=postgres, upstream=upstream, sink=sink, records=records,
        spans=spans, other=other, secrets=vault_secrets,
    )  # fmt: skip
    await _register_tenant_beside(testbed)
    return testbed


def _build_console_app(url: str) -> dict[str, Any]:
    return {
        "client_id": _CONSOLE_APP, "application_type": "native", "token_endpoint_auth_method": "none",
        "redirect_uris": [f"{url}{SIGN_IN_CALLBACK_PATH}"], "grant_types": ["authorization_code"],
        "response_types": ["code"],
    }  # fmt: skip


def _build_accounts(users: int, agents: int) -> dict[str, dict[str, Any]]:
    """Agents are in the group that is asked, so that only what they are keeps them from deciding."""
    people = [*REVOKED_USERS, *(f"user-{number}" for number in range(users)), *BREAK_GLASS_USERS]
    approvers = [APPROVER, *REVOKED_AGENTS, *(f"agent-{number}" for number in range(agents))]
    return {
        ADMIN: {"tenant": TENANT, "groups": ["people", "admins"]},
        **{name: {"tenant": TENANT, "groups": ["people"]} for name in people},
        **{name: {"tenant": TENANT, "groups": ["people", "oncall"]} for name in approvers},
        **{name: {"tenant": OTHER_TENANT} for name in (ADMIN_BESIDE, "user-beside", "agent-beside")},
        APPROVER_BESIDE: {"tenant": OTHER_TENANT, "groups": ["oncall"]},
    }


async def _register_tenant_beside(testbed: Testbed) -> None:
    """The tenant beside gets some of the tools, and each tenant its own secret under the same name."""
    admin = HttpConnection.for_url(testbed.url, token=await testbed.sign_in_user(ADMIN, *SCOPES))
    other_admin = HttpConnection.for_url(testbed.url, token=await testbed.sign_in_user(ADMIN_BESIDE, *SCOPES))
    for name in SHARED_TOOLS:
        tool = (await admin.get(f"/v1/tools/deputy.{name}")).json()
        contract = {**tool["contract"], "handler": {"target": f"tools.deputy:{name}"}}
        _require_success(await other_admin.post("/v1/tools", contract))
    for http, tenant in ((admin, TENANT), (other_admin, OTHER_TENANT)):
        _require_success(await http.post("/v1/secrets", {"name": SECRET, "value": testbed.secrets[tenant]}))
        http.close()


def _require_success(answer: HttpResponse) -> None:
    if answer.status not in (200, 201, 204):
        raise RuntimeError(f"the site could not be set up: {answer.status} {answer.body[:500]!r}")


def list_request_paths(testbed: Testbed) -> list[str]:
    """The paths of all requests the upstream has had."""
    return [orjson.loads(http)["path"] for http in (testbed.records / REQUESTS_FILE).read_bytes().splitlines()]
