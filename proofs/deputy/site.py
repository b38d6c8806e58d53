"""The place of the proof: an OpenID provider, one gateway that trusts it, an upstream that trusts the gateway.

Above: `proofs.confused_deputy`. Below: the kit.
"""

import asyncio
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from deputize.doors.console.cookies import SESSION
from deputize.lifecycle.console import CALLBACK
from deputize.store.local import LocalPostgres
from proofs.deputy import program
from proofs.kit.companions import start_sink, start_upstream
from proofs.kit.gateway import OPEN, GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.idp.install import install
from proofs.kit.idp.provider import Provider, Resource, new_browser, walk_through
from proofs.kit.upstream import RECEIVED
from proofs.kit.wire import Answer, Line
from proofs.kit.world import World
from proofs.tools.deputy import AUDIENCE, SECRET

HERE, BESIDE, NOWHERE = "acme", "beside", "nowhere"
ADMIN, ADMIN_BESIDE = "admin", "admin-beside"
# Who is asked about calls, who may break the glass, and whoever is asked beside.
APPROVER, GLAZIERS, APPROVER_BESIDE = "oncall-0", ("glazier-0", "glazier-1"), "oncall-beside"
# People and agents whose authority is taken back in the course of the proof.
GONE, GONE_AGENTS = ("gone-token", "gone-user", "gone-subject", "gone-lender"), ("gone-agent", "gone-subject-agent")
SCOPES = ("proof:write", "deputize:admin")
GLASS = "deputize:break-glass"
ELSEWHERE = "https://elsewhere.proof"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
MOVED_IN = ("whoami_upstream", "keyed", "look")
_RESOURCES = {"RS256": "urn:proof:gateway", "ES256": "urn:proof:gateway:es", "EdDSA": "urn:proof:gateway:ed"}
_OTHER_RESOURCE, _CONSOLE_RESOURCE = "urn:proof:elsewhere", "urn:proof:console"
_CONSOLE, _CONSOLE_APP = "https://console.proof", "console"
POLICIES = f"""{OPEN}
@id("pleading-asks")
@decision("ask")
@approvers("oncall")
forbid (principal, action == Action::"call", resource == Tool::"deputy.plead");
"""
SERVER = "confessional"
OTHER_ISSUER = "https://other.proof"
_SETTINGS = """
[[identity.issuers]]
issuer = "{idp}"
audience = "{url}"
console_audience = "{console}"
human = true
tenant_claim = "tenant"

[console]
issuer = "{idp}"
client_id = "{app}"

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
review = "everything"
probe_seconds = 3600
"""


@dataclass(kw_only=True, slots=True)
class Site:
    world: World
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

    async def person(self, name: str, *scopes: str, algorithm: str = "RS256") -> str:
        issued = await self.idp.sign_in(name, _RESOURCES[algorithm], *scopes)
        return self._shown(f"{name} by {algorithm}", issued.access_token)

    async def id_token(self, name: str) -> str:
        return (await self.idp.sign_in(name, _RESOURCES["RS256"], "proof:write")).id_token

    async def token_for_others(self, name: str) -> str:
        """As real as any, for another service of the same provider."""
        return (await self.idp.sign_in(name, _OTHER_RESOURCE, *SCOPES)).access_token

    async def for_deciding(self, name: str, *scopes: str) -> str:
        """A person's token for the console, with which they decide about what others asked for."""
        issued = await self.idp.sign_in(name, _CONSOLE_RESOURCE, *scopes)
        return self._shown(f"{name} who decides", issued.access_token)

    async def agent_for_deciding(self, name: str) -> str:
        return await self.idp.agent_token(name, _CONSOLE_RESOURCE)

    async def session(self, name: str) -> str:
        """Somebody signs in at the console, in a browser of their own: what it keeps of that."""
        async with new_browser(self.url) as browser:
            first = await browser.get("/console/sign-in")
            back = await walk_through(browser, first, name, f"{self.url}{CALLBACK}")
            landed = await browser.get(back)
            kept = browser.cookies.get(SESSION)
        if kept is None:
            raise RuntimeError(f"{name} could not sign in at the console: {landed.status_code} {landed.text[:500]}")
        self.sessions[f"{name} ({len(self.sessions)})"] = kept
        return kept

    async def agent(self, name: str, *scopes: str) -> str:
        return self._shown(f"{name} itself", await self.idp.agent_token(name, _RESOURCES["RS256"], *scopes))

    async def lend(self, line: Line, subject_token: str, actor_token: str, **more: str) -> str:
        """The user's authority in the agent's hands: RFC 8693, as a client would ask for it."""
        answer = await self.exchange(line, subject_token, actor_token, **more)
        if answer.status != 200:
            raise RuntimeError(f"an exchange was refused: {answer.status} {answer.body[:500]!r}")
        token = str(answer.json()["access_token"])
        return self._shown(f"delegation {len(self.inbound)}", token)

    async def exchange(self, line: Line, subject_token: str, actor_token: str, **more: str) -> Answer:
        form = {**exchange_form(), "subject_token": subject_token, "actor_token": actor_token, **more}
        headers = {"content-type": "application/x-www-form-urlencoded"}
        return await line.send("POST", "/oauth/token", headers=headers, body=urlencode(form).encode())

    def _shown(self, whose: str, token: str) -> str:
        self.inbound[whose if whose not in self.inbound else f"{whose} ({len(self.inbound)})"] = token
        return token


def exchange_form() -> dict[str, str]:
    return {
        "grant_type": EXCHANGE,
        "subject_token_type": ACCESS_TOKEN,
        "actor_token_type": ACCESS_TOKEN,
        "scope": "proof:write",
    }


async def open_site(world: World, *, users: int, agents: int) -> Site:
    # Before anything else is started, for it may be impossible here.
    await install(world)
    port, records, spans = world.free_port(), world.folder / "upstream", world.folder / "spans.bin"
    url = f"http://127.0.0.1:{port}"
    ours = {name: Resource(audience=url, algorithm=algorithm) for algorithm, name in _RESOURCES.items()}
    idp, postgres, sink, upstream = await asyncio.gather(
        Provider.start(
            world,
            resources={
                **ours,
                _OTHER_RESOURCE: Resource(audience=ELSEWHERE),
                _CONSOLE_RESOURCE: Resource(audience=_CONSOLE),
            },
            accounts=_accounts(users, agents),
            agents=[*(f"agent-{number}" for number in range(agents)), *GONE_AGENTS, "agent-beside"],
            scopes=(*SCOPES, GLASS),
            apps=[_console_app(url)],
        ),
        world.postgres(),
        start_sink(world, keep=spans),
        start_upstream(world, records, trust=url, audience=AUDIENCE),
    )
    other = new_issuer()
    (world.folder / "other.json").write_text(other.jwks())
    settings = _SETTINGS.format(
        idp=idp.issuer, url=url, other=OTHER_ISSUER, other_keys=world.folder / "other.json", nowhere=NOWHERE, sink=sink,
        console=_CONSOLE, app=_CONSOLE_APP, server=SERVER, here=HERE, python=sys.executable, program=program.__file__,
    )  # fmt: skip
    gateway = await start_gateway(
        world, postgres.dsn, new_issuer(), tools="deputy.py", settings=settings, port=port, policies=POLICIES,
        env={"PROOF_UPSTREAM": upstream},
    )  # fmt: skip
    hidden = {tenant: f"vault-{tenant}-{secrets.token_urlsafe(24)}" for tenant in (HERE, BESIDE)}
    site = Site(
        world=world, gateway=gateway, idp=idp, postgres=postgres, upstream=upstream, sink=sink, records=records,
        spans=spans, other=other, secrets=hidden,
    )  # fmt: skip
    await _move_in(site)
    return site


def _console_app(url: str) -> dict[str, Any]:
    return {
        "client_id": _CONSOLE_APP, "application_type": "native", "token_endpoint_auth_method": "none",
        "redirect_uris": [f"{url}{CALLBACK}"], "grant_types": ["authorization_code"], "response_types": ["code"],
    }  # fmt: skip


def _accounts(users: int, agents: int) -> dict[str, dict[str, Any]]:
    """Agents are in the group that is asked, so that only what they are keeps them from deciding."""
    people = [ADMIN, *GONE, *(f"user-{number}" for number in range(users)), *GLAZIERS]
    asked = [APPROVER, *GONE_AGENTS, *(f"agent-{number}" for number in range(agents))]
    return {
        **{name: {"tenant": HERE, "groups": ["people"]} for name in people},
        **{name: {"tenant": HERE, "groups": ["people", "oncall"]} for name in asked},
        **{name: {"tenant": BESIDE} for name in (ADMIN_BESIDE, "user-beside", "agent-beside")},
        APPROVER_BESIDE: {"tenant": BESIDE, "groups": ["oncall"]},
    }


async def _move_in(site: Site) -> None:
    """The tenant beside gets some of the tools, and each tenant its own secret under the same name."""
    here = Line.to(site.url, token=await site.person(ADMIN, *SCOPES))
    beside = Line.to(site.url, token=await site.person(ADMIN_BESIDE, *SCOPES))
    for name in MOVED_IN:
        shown = (await here.get(f"/v1/tools/deputy.{name}")).json()
        contract = {**shown["contract"], "handler": {"target": f"tools.deputy:{name}"}}
        _done(await beside.post("/v1/tools", contract))
    for line, tenant in ((here, HERE), (beside, BESIDE)):
        _done(await line.post("/v1/secrets", {"name": SECRET, "value": site.secrets[tenant]}))
        line.close()


def _done(answer: Answer) -> None:
    if answer.status not in (200, 201, 204):
        raise RuntimeError(f"the site could not be set up: {answer.status} {answer.body[:500]!r}")


def received(site: Site) -> list[str]:
    """The paths of all requests the upstream has had."""
    return [orjson.loads(line)["path"] for line in (site.records / RECEIVED).read_bytes().splitlines()]
