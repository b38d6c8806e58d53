"""The places of a gateway that take a URL, each as a function that gives one URL to the product's own code.

A place whose URLs the operator names may connect to private addresses of that host, and never to addresses that no
setting allows. Every other place gets its URLs from outside, and may connect to public addresses only.
"""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import SecretStr

from deputize.composition.operator_hosts import collect_operator_hosts
from deputize.core.call import Callback
from deputize.core.clock import Clock
from deputize.core.settings import (
    ConsoleSettings,
    EventSinkSettings,
    IdentitySettings,
    IssuerSettings,
    LogSettings,
    McpServerSettings,
    PolicySettings,
    Settings,
    WebhookSettings,
    WitnessSettings,
)
from deputize.core.settings.approvals import ApprovalSettings, NotificationTarget
from deputize.core.settings.identity import OperatorClientSettings
from deputize.evidence.cloud_events import OutgoingEvent
from deputize.evidence.log.checkpoint import LogCheckpoint, get_witness_key, sign_checkpoint
from deputize.evidence.log.signed_note import NoteSigner
from deputize.evidence.tenant_log.witness_client import load_witnesses, request_cosignature
from deputize.execute.egress import Egress
from deputize.execute.page_client import PageClient
from deputize.execute.upstreams.oauth import metadata, tokens
from deputize.execute.upstreams.oauth.client_registration import OAuthClient, register_client
from deputize.execute.upstreams.oauth.tokens import TokenEndpoint
from deputize.execute.upstreams.oauth.www_authenticate import Challenge
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.govern.identity.dids import DidKeys
from deputize.govern.identity.jwks import IssuerKeys
from deputize.govern.identity.oidc_login import OidcLogin
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.govern.policy.authzen import AuthZenClient
from deputize.lifecycle.callbacks import require_callback_allowed
from deputize.operations.approvals.notifications.receivers import Receivers
from deputize.operations.background.events.sink_factory import open_sink
from deputize.store.keys import KeySet, TenantKeys
from proofs.ssrf.hostile_urls import HostileUrl
from proofs.ssrf.sites import ATTACKER_URL, OPERATOR_HOST, OPERATOR_URL, SECURE_OPERATOR_URL, Sites
from tests.support.policy_inputs import make_question

_ISSUER = "https://login.operator.test"
_CLIENT = OAuthClient(issuer=ATTACKER_URL, id="gateway", method="none")
_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A place that takes a URL. `covers` are the uses of the network that it tries.

    `is_named` says that the operator names its URLs. Places with `paths_only` connect wherever the settings say, with a
    client of others: what is tried is where their answers lead. Places without `has_paths` do not speak HTTP. Those
    that are not `is_connecting` read URLs and must connect to none. `own_cases` are its alone, in both forms.
    """

    name: str
    covers: tuple[str, ...]
    attempt: Callable[[str], Awaitable[object]]
    is_named: bool = True
    paths_only: bool = False
    has_paths: bool = True
    is_connecting: bool = True
    own_cases: tuple[HostileUrl, ...] = ()

    @property
    def site_url(self) -> str:
        """The site whose paths are given to the place."""
        return OPERATOR_URL if self.is_named else ATTACKER_URL


@contextlib.asynccontextmanager
async def open_operator_egress(settings: Settings) -> Any:
    """Open the outbound client as a gateway does for what its operator named."""
    egress = Egress(allow_hosts=collect_operator_hosts(settings))
    try:
        yield egress
    finally:
        await egress.aclose()


def _make_issuer(url: str | None, issuer: str = _ISSUER) -> IssuerSettings:
    return IssuerSettings(issuer=issuer, audience="gateway", tenant="acme", jwks_url=url, human=True)


async def read_issuer_keys(url: str) -> None:
    """Read an issuer's keys from the URL in the settings."""
    identity = IdentitySettings(issuers=(_make_issuer(url),))
    async with open_operator_egress(Settings(identity=identity)) as egress:
        await IssuerKeys(identity.issuers[0], Clock(), egress.get).get_key("EdDSA", None)


async def read_operator_keys(url: str) -> None:
    """Read the keys of an operator's client from the URL in the settings."""
    client = OperatorClientSettings(client_id="ci", jwks_url=url, tenants=("acme",))
    async with open_operator_egress(Settings(identity=IdentitySettings(operators=(client,)))) as egress:
        await IssuerKeys(_make_issuer(client.jwks_url, "ci"), Clock(), egress.get).get_key("EdDSA", None)


async def resolve_agent_did(url: str) -> None:
    """Resolve the DID of an agent, which any caller who exchanges tokens can name."""
    _, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    did = f"did:web:{authority.replace(':', '%3A')}" + "".join(f":{each}" for each in path.split("/") if each)
    egress = Egress()
    try:
        await DidKeys(Clock(), egress.get).get_key(did, "EdDSA", None)
    finally:
        await egress.aclose()


async def read_page(url: str) -> None:
    """Read a page of a host that the operator listed: others decide to which address its name leads."""
    parts = urlsplit(url)
    try:
        listed = parts.hostname or "" if parts.port is None else f"{parts.hostname}:{parts.port}"
    except ValueError:
        listed = "listed.test"
    await PageClient((listed,), max_bytes=65_536).get(url, {}, _SECONDS)


async def ask_decision_point(url: str) -> None:
    """Ask the decision point in the settings about a call."""
    policy = PolicySettings(engine="authzen", authzen_url=url)
    async with open_operator_egress(Settings(policy=policy)) as egress:
        await AuthZenClient(policy, egress.post).decide(make_question())


async def ask_witness(url: str) -> None:
    """Ask a witness in the settings to cosign a checkpoint."""
    log, cosigner = (
        NoteSigner(name=name, private_key=Ed25519PrivateKey.generate()) for name in ("host/log/acme", "witness.test/w")
    )
    settings = LogSettings(witnesses=(WitnessSettings(url=url, key=str(get_witness_key(cosigner))),))
    note = sign_checkpoint(LogCheckpoint(origin=log.name, size=7, root=bytes(32)), [log])
    async with open_operator_egress(Settings(log=settings)) as egress:

        async def send(target: str, body: bytes) -> tuple[int, bytes]:
            answer: tuple[int, bytes] = await egress.request("POST", target, body=body)
            return answer

        await request_cosignature(send, load_witnesses(settings)[0], note, 3, [bytes(32)])


async def send_callback(url: str) -> None:
    """Send the callback that a caller asked for."""
    require_callback_allowed(WebhookSettings(), Callback(url=url))
    egress = Egress(allow_hosts=frozenset(WebhookSettings().hosts))
    try:
        await egress.send(url, b"{}", headers={}, seconds=_SECONDS)
    finally:
        await egress.aclose()


async def notify_webhook(url: str) -> None:
    """Notify approvers at a webhook in the settings."""
    target = NotificationTarget(group="approvers", url=SecretStr(url))
    hosts = (urlsplit(url).hostname or "",)
    settings = Settings(approvals=ApprovalSettings(notify=(target,)), webhooks=WebhookSettings(hosts=hosts))
    (receiver,) = Receivers(settings).find_receivers("acme", "approvers")
    egress = Egress(allow_hosts=frozenset(hosts))
    try:
        await egress.send(receiver.url.get_secret_value(), b"{}", headers={}, seconds=_SECONDS)
    finally:
        await egress.aclose()


async def notify_service(url: str) -> None:
    """Notify approvers through another service in the settings, which has a client of its own."""
    scheme = "jsons" if url.lower().startswith("https") else "json"
    target = NotificationTarget(group="approvers", url=SecretStr(f"{scheme}://{url.partition('://')[2]}"))
    receivers = Receivers(Settings(approvals=ApprovalSettings(notify=(target,))))
    (receiver,) = receivers.find_receivers("acme", "approvers")
    assert receivers.apprise_sender is not None
    await receivers.apprise_sender.send(receiver, "A title", "A text")


class _OneKeySet:
    """The keys of the one tenant here; nothing is stored."""

    async def get(self, tenant: str) -> KeySet:
        return KeySet.from_data_keys(tenant, {1: bytes(32)}, Clock())


async def send_event(kind: str, url: str) -> None:
    """Send an event to a sink in the settings."""
    if kind == "nats":
        url = f"nats://{url.partition('://')[2].partition('/')[0]}"
    settings = EventSinkSettings(name="sink", kind=kind, url=SecretStr(url))  # type: ignore[arg-type]  # two literals
    event = OutgoingEvent(id="1", tenant="acme", call_id=None, sequence=1, type="t", types=("t",), body=b"{}")
    sink = open_sink(settings, cast(TenantKeys, _OneKeySet()), Clock())
    try:
        await sink.send([event])
    finally:
        await sink.aclose()


async def discover_mcp_server(url: str) -> None:
    """Ask an MCP server in the settings for its tools."""
    server = McpServerSettings(name="inner", url=url, tenant="acme")
    upstreams = UpstreamPool(Settings(servers=(server,)))
    try:
        await upstreams.discover_server("acme", "inner", None, _SECONDS)
    finally:
        await upstreams.aclose()


class OAuthPlaces:
    """What an MCP server and its authorization server name when a person or the gateway signs in there."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites

    async def _with_http(self, use: Callable[[Egress], Awaitable[object]]) -> None:
        egress = Egress(frozenset({OPERATOR_HOST}))
        try:
            await use(egress)
        finally:
            await egress.aclose()

    async def fetch_resource_metadata(self, url: str) -> None:
        """Fetch the metadata that a server's challenge names."""
        server, challenge = f"{SECURE_OPERATOR_URL}/mcp", Challenge(resource_metadata=url)
        await self._with_http(
            lambda egress: metadata.discover_auth_server(egress.request, server, challenge, issuer=None)
        )

    async def fetch_server_metadata(self, url: str) -> None:
        """Fetch the metadata of the authorization server that a server's metadata name."""
        server = self._sites.publish(SECURE_OPERATOR_URL, lambda own: {"resource": own, "authorization_servers": [url]})
        await self._with_http(
            lambda egress: metadata.discover_auth_server(egress.request, server, Challenge(), issuer=None)
        )

    async def request_token(self, url: str) -> None:
        """Request a token at the endpoint that an authorization server's metadata name."""
        endpoint = TokenEndpoint(url=url, resource=SECURE_OPERATOR_URL, client=_CLIENT)
        await self._with_http(lambda egress: tokens.request_client_token(egress.request, Clock(), endpoint, scopes=()))

    async def register(self, url: str) -> None:
        """Register the gateway at the endpoint that an authorization server's metadata name."""
        issuer = self._sites.publish(
            SECURE_OPERATOR_URL,
            lambda own: {"issuer": own, "token_endpoint": f"{ATTACKER_URL}/token", "registration_endpoint": url,
                         "resource": own, "authorization_servers": [own]},
        )  # fmt: skip

        async def discover_and_register(egress: Egress) -> None:
            found = await metadata.discover_auth_server(egress.request, issuer, Challenge(), issuer=None)
            await register_client(egress.request, found, "https://gateway.test/callback")

        await self._with_http(discover_and_register)

    async def revoke(self, url: str) -> None:
        """Revoke a token at the endpoint that an authorization server's metadata name."""
        issuer = self._sites.publish(SECURE_OPERATOR_URL, lambda own: {"issuer": own, "revocation_endpoint": url})

        async def discover_and_revoke(egress: Egress) -> None:
            found = await metadata.discover_revocation_endpoint(egress.request, issuer)
            assert found is not None
            await tokens.revoke_token(egress.request, Clock(), _CLIENT, found, token="t", hint="refresh_token")

        await self._with_http(discover_and_revoke)


class SignInPlaces:
    """What an issuer's discovery document names."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites

    async def read_discovered_keys(self, url: str) -> None:
        """Read an issuer's keys from the URL that its discovery document names."""
        issuer = self._sites.publish(OPERATOR_URL, lambda own: {"issuer": own, "jwks_uri": url})
        identity = IdentitySettings(issuers=(_make_issuer(None, issuer),))
        async with open_operator_egress(Settings(identity=identity)) as egress:
            await IssuerKeys(identity.issuers[0], Clock(), egress.get).get_key("EdDSA", None)

    async def finish_sign_in(self, url: str) -> None:
        """Exchange a person's code at the token endpoint that the discovery document names."""
        issuer = self._sites.publish(
            OPERATOR_URL,
            lambda own: {"issuer": own, "authorization_endpoint": f"{own}/auth", "token_endpoint": url,
                         "jwks_uri": f"{own}/keys"},
        )  # fmt: skip
        identity = IdentitySettings(issuers=(_make_issuer(None, issuer),))
        console = ConsoleSettings(issuer=issuer, client_id="console")
        async with open_operator_egress(Settings(identity=identity, console=console)) as egress:
            verifier = TokenVerifier(identity, Clock(), egress.get)
            login = OidcLogin(
                console, verifier, Clock(), egress.get, egress.post, fresh_seconds=900, redirect_uri="https://g.test/"
            )
            _, pending = await login.start_login()
            await login.finish_login(pending, {"code": "c", "state": pending.state})


def list_gateway_places(sites: Sites) -> list[Place]:
    """List the places of a running gateway."""
    oauth, sign_in = OAuthPlaces(sites), SignInPlaces(sites)
    tokens_code = ("lifecycle/credentials/wiring.py Egress", "lifecycle/credentials/wiring.py egress.request")
    operator_module = "interfaces/cli/local/operator_identity.py"
    operator_code = (f"{operator_module} Egress", f"{operator_module} egress.get")
    keys_code = ("app.py Egress", "composition/identity.py egress.get")
    return [
        # Commands that need an operator read them in the same way.
        Place(name="issuer keys", covers=(*keys_code, *operator_code), attempt=read_issuer_keys),
        Place(name="operator client keys", covers=keys_code, attempt=read_operator_keys),
        Place(name="discovered keys", covers=keys_code, attempt=sign_in.read_discovered_keys, is_named=False),
        Place(name="console sign-in", covers=("composition/identity.py egress.post",), attempt=sign_in.finish_sign_in,
              is_named=False),
        Place(name="agent DID", covers=("composition/identity.py Egress",), attempt=resolve_agent_did, is_named=False),
        Place(name="page of the web", covers=("execute/page_client.py Egress", "execute/page_client.py egress.exchange",
              "execute/page_client.py httpx2"), attempt=read_page, is_named=False),
        Place(name="decision point", covers=("composition/runtime.py egress.post",), attempt=ask_decision_point),
        Place(name="witness", covers=("composition/background_tasks.py egress.request",), attempt=ask_witness),
        Place(name="callback", covers=("composition/worker.py Egress", "composition/worker.py egress.send"),
              attempt=send_callback, is_named=False),
        Place(name="notification webhook", covers=("composition/worker.py egress.send",), attempt=notify_webhook),
        Place(name="notification service", covers=("operations/approvals/notifications/receivers.py apprise",),
              attempt=notify_service),
        Place(name="event webhook", covers=("operations/background/events/webhook_sink.py Egress",
                                            "operations/background/events/webhook_sink.py egress.send"),
              attempt=lambda url: send_event("webhook", url)),
        Place(name="event stream", covers=("operations/background/events/nats_sink.py nats",
                                           "operations/background/events/nats_sink.py resolve_allowed_addresses"),
              attempt=lambda url: send_event("nats", url), has_paths=False),
        Place(name="MCP server", covers=("execute/upstreams/server_pool.py Egress",
                                         "execute/upstreams/http_transport.py egress.dial"),
              attempt=discover_mcp_server),
        Place(name="resource metadata", covers=tokens_code, attempt=oauth.fetch_resource_metadata, is_named=False),
        Place(name="authorization server", covers=tokens_code, attempt=oauth.fetch_server_metadata, is_named=False),
        Place(name="token endpoint", covers=tokens_code, attempt=oauth.request_token, is_named=False),
        Place(name="registration endpoint", covers=tokens_code, attempt=oauth.register, is_named=False),
        Place(name="revocation endpoint", covers=tokens_code, attempt=oauth.revoke, is_named=False),
    ]  # fmt: skip
