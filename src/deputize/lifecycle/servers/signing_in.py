"""Puts together what signs in to servers: the client, its own way out, people's links and this gateway's own tokens.

Above: `app.py`. Below: `signed_in.py`, `links.py`, `own_tokens.py`, `execute/upstreams/signing_in/`.
"""

from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from deputize.core.clock import Clock
from deputize.core.settings import Settings
from deputize.execute.egress import Egress
from deputize.execute.upstreams.servers import Upstreams
from deputize.execute.upstreams.signing_in.flow import SigningIn
from deputize.govern.vault.port import Vault
from deputize.lifecycle.console import base_of
from deputize.lifecycle.servers.links import BACK, Links
from deputize.lifecycle.servers.own_tokens import OwnTokens
from deputize.lifecycle.servers.signed_in import SignedIn
from deputize.store.keys import TenantKeys
from deputize.store.pool import Store

CLIENT_PATH = "/.well-known/oauth-client"


def signing_in(
    settings: Settings,
    store: Store,
    keys: TenantKeys,
    vault: Vault,
    clock: Clock,
    upstreams: Upstreams,
    stack: AsyncExitStack,
) -> tuple[Links, SignedIn]:
    """Of what the operator named, it reaches only the servers that want a sign-in, and where one signs in."""
    named = [each for each in settings.servers if each.credential in ("link", "client")]
    hosts = (urlsplit(url).hostname for each in named for url in (each.url, each.issuer) if url)
    egress = Egress(frozenset(host for host in hosts if host))
    stack.push_async_callback(egress.aclose)
    base = base_of(settings)
    here = base or f"http://{settings.server.host}:{settings.server.port}"
    document = here + CLIENT_PATH if here.startswith("https://") else None
    flow = SigningIn(egress.ask, clock, back_to=here + BACK, document=document)
    links = Links(store, keys, vault, clock, flow, base=base)
    return links, SignedIn(upstreams, links, OwnTokens(upstreams, vault, clock, flow))
