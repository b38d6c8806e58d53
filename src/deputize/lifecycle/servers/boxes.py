"""What lets somebody in at a server, as it is written down: sealed for one tenant, one server and one person.

Above: `links.py` and `linking.py`. Below: `store/keys.py`. Secrets of clients that the operator registered stay in the
vault and are not written down here.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from deputize.execute.upstreams.signing_in.clients import Client
from deputize.execute.upstreams.signing_in.flow import Begun
from deputize.execute.upstreams.signing_in.tokens import Endpoint
from deputize.store.keys import KeySet

_FORM = 1
_LINK, _BEGUN, _CLIENT = "server link", "server sign-in", "server client"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What a link is worth: the token of the moment, and how to get the next one."""

    access: str
    refresh: str | None
    endpoint: Endpoint

    def __repr__(self) -> str:
        return f"Kept({self.endpoint.resource!r})"


def seal_link(keys: KeySet, server: str, user: str, kept: Kept) -> bytes:
    told = {"access": kept.access, "refresh": kept.refresh, "endpoint": asdict(kept.endpoint)}
    return _sealed(keys, _LINK, _name(server, user), told)


def open_link(keys: KeySet, server: str, user: str, box: bytes) -> Kept:
    told = _opened(keys, _LINK, _name(server, user), box)
    return Kept(access=told["access"], refresh=told["refresh"], endpoint=_endpoint(told["endpoint"]))


def seal_begun(keys: KeySet, server: str, user: str, begun: Begun) -> bytes:
    return _sealed(keys, _BEGUN, _name(server, user), asdict(begun))


def open_begun(keys: KeySet, server: str, user: str, box: bytes) -> Begun:
    told = _opened(keys, _BEGUN, _name(server, user), box)
    endpoint, scopes = _endpoint(told.pop("endpoint")), tuple(told.pop("scopes"))
    return Begun(**told, endpoint=endpoint, scopes=scopes)


def seal_client(keys: KeySet, server: str, back_to: str, client: Client) -> bytes:
    return _sealed(keys, _CLIENT, server, {"back_to": back_to, "client": asdict(client)})


def open_client(keys: KeySet, server: str, back_to: str, box: bytes) -> Client | None:
    """None for a registration that sends people back to where nobody is any more."""
    told = _opened(keys, _CLIENT, server, box)
    return Client(**told["client"]) if told["back_to"] == back_to else None


def without_secret(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, client=replace(endpoint.client, secret=None))


def with_secret(endpoint: Endpoint, secret: str) -> Endpoint:
    return replace(endpoint, client=replace(endpoint.client, secret=secret))


def _endpoint(told: dict[str, Any]) -> Endpoint:
    return Endpoint(url=told["url"], resource=told["resource"], client=Client(**told["client"]))


def _name(server: str, user: str) -> str:
    # No name of a server holds a space.
    return f"{server} {user}"


def _sealed(keys: KeySet, kind: str, name: str, told: dict[str, Any]) -> bytes:
    return keys.seal(name, kind, orjson.dumps({"v": _FORM, **told}))


def _opened(keys: KeySet, kind: str, name: str, box: bytes) -> dict[str, Any]:
    told: dict[str, Any] = orjson.loads(keys.open(name, kind, box))
    if told.pop("v") != _FORM:
        raise ValueError("a link was written down in a form this release does not know")
    return told
