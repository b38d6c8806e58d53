"""Build the token sources for servers that need a sign-in: linked accounts and the gateway's own tokens."""

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from deputize.core.clock import Clock
from deputize.core.settings import LinkedServer, Settings
from deputize.core.settings.urls import CLIENT_METADATA_PATH, LINK_CALLBACK_PATH, get_base_url
from deputize.execute.egress import Egress
from deputize.execute.upstreams.oauth.flow import OAuthFlow
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.govern.vault.port import SecretVault
from deputize.lifecycle.credentials.client_credentials import ClientCredentialTokens
from deputize.lifecycle.credentials.linked_accounts import LinkedAccounts
from deputize.lifecycle.credentials.upstream_tokens import UpstreamTokens
from deputize.store.keys import TenantKeys
from deputize.store.pool import Store


def build_upstream_tokens(
    settings: Settings,
    store: Store,
    keys: TenantKeys,
    vault: SecretVault,
    clock: Clock,
    upstreams: UpstreamPool,
    stack: AsyncExitStack,
) -> tuple[LinkedAccounts, UpstreamTokens]:
    """Build the token sources."""
    egress = build_sign_in_egress(settings)
    stack.push_async_callback(egress.aclose)
    base_url = get_base_url(settings)
    own_url = base_url or f"http://{settings.server.host}:{settings.server.port}"
    document = own_url + CLIENT_METADATA_PATH if own_url.startswith("https://") else None
    flow = OAuthFlow(egress.request, clock, redirect_uri=own_url + LINK_CALLBACK_PATH, client_metadata_url=document)
    linked: list[LinkedServer] = [each for each in settings.servers if each.credential == "link"]
    linked += [each for each in settings.services if each.credential == "link"]
    linked_servers = {(each.tenant or settings.tools.tenant, each.name): each for each in linked}
    linked_accounts = LinkedAccounts(store, keys, vault, clock, flow, servers=linked_servers, base_url=base_url)
    return linked_accounts, UpstreamTokens(
        upstreams, linked_accounts, ClientCredentialTokens(upstreams, vault, clock, flow)
    )


def build_sign_in_egress(settings: Settings) -> Egress:
    """Build the outbound client that reaches servers and services that need a sign-in, and their issuers."""
    oauth_servers: list[LinkedServer] = [each for each in settings.servers if each.credential in ("link", "client")]
    # What a document says about a service must not lead into this network.
    oauth_servers += [each for each in settings.services if each.credential == "link" and not each.public_only]
    hosts = (urlsplit(url).hostname for each in oauth_servers for url in (each.url, each.issuer) if url)
    return Egress(frozenset(host for host in hosts if host))
