"""Somebody at a browser, for servers that want a sign-in: agrees to everything, and keeps the token that comes of it.

What the product's pages and tables do is done here in memory; whom to ask, how, and what to believe is the product's.
Above: `client.py`. Below: `execute/upstreams/signing_in/`, unmodified.
"""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from deputize.core.clock import Clock
from deputize.core.definition import Secret
from deputize.core.errors import Secrets
from deputize.execute.egress import Egress
from deputize.execute.upstreams.signing_in.challenge import Challenge, challenge_of
from deputize.execute.upstreams.signing_in.clients import Client
from deputize.execute.upstreams.signing_in.flow import SigningIn, asks_in_vain, scopes_to_ask
from deputize.execute.upstreams.signing_in.places import Place

# The one address the suite takes for that of a client's document; nobody can read it there.
_DOCUMENT = "https://conformance-test.local/client-metadata.json"
_BACK_TO = "http://127.0.0.1:7070/console/servers/callback"
_MOST_TIMES = 3


@dataclass
class Person:
    """`context` is what the suite says somebody registered or was given beforehand."""

    url: str
    context: dict[str, Any]
    secret: Secret | None = None
    _asked: tuple[str, ...] = ()
    _times: int = 0
    _client: Client | None = None
    _egress: Egress = field(init=False)
    _signing_in: SigningIn = field(init=False)

    def __post_init__(self) -> None:
        self._egress = Egress(frozenset({str(urlsplit(self.url).hostname)}))
        self._signing_in = SigningIn(self._egress.ask, Clock(), back_to=_BACK_TO, document=_DOCUMENT)

    async def let_in(self, refused: Secrets) -> None:
        """Gets a token that fits what the server said, or raises what stands in the way; not without end."""
        challenge = challenge_of(refused.challenge)
        if self._times == _MOST_TIMES or asks_in_vain(challenge, self._asked):
            raise refused
        self._times += 1
        place = await self._signing_in.find(self.url, challenge, issuer=self.context.get("issuer"))
        person = "client_id" not in self.context or "issuer" in self.context
        self._asked = scopes_to_ask(place, challenge, self._asked, offline=person)
        self._client = await self._signing_in.client(
            place,
            client_id=self.context.get("client_id"),
            secret=self.context.get("client_secret") or self.context.get("private_key_pem"),
            kept=self._client,
        )
        self.secret = Secret(await self._token(place, challenge, person=person), name="suite")

    async def _token(self, place: Place, challenge: Challenge, *, person: bool) -> str:
        assert self._client is not None
        if not person:
            return (await self._signing_in.as_client(place, self._client, self._asked)).access
        url, begun = self._signing_in.begin(place, self._client, self._asked)
        async with httpx2.AsyncClient(trust_env=False) as browser:
            sent_back = (await browser.get(url)).headers["location"]
        assert sent_back.startswith(_BACK_TO)
        return (await self._signing_in.finish(begun, dict(parse_qsl(urlsplit(sent_back).query)))).access

    async def aclose(self) -> None:
        await self._egress.aclose()
