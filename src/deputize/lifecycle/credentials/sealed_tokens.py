"""Encrypt tokens and pending sign-ins for one tenant, one server and one person.

Used by `linked_accounts.py` and `operations/servers/account_links.py`. Secrets of clients that the operator registered
stay in the vault and are not stored here.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from deputize.execute.upstreams.oauth.client_registration import OAuthClient
from deputize.execute.upstreams.oauth.flow import PendingAuthorization
from deputize.execute.upstreams.oauth.tokens import TokenEndpoint
from deputize.store.keys import KeySet

_FORMAT_VERSION = 1
_LINK_PURPOSE, _SIGN_IN_PURPOSE, _CLIENT_PURPOSE = "server link", "server sign-in", "server client"
_REVOCATION_PURPOSE = "server token revocation"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkedTokens:
    """The tokens of a linked account: the access token, and how to renew it."""

    access: str
    refresh: str | None
    endpoint: TokenEndpoint

    def __repr__(self) -> str:
        return f"LinkedTokens({self.endpoint.resource!r})"


def seal_link(keys: KeySet, server: str, user: str, tokens: LinkedTokens) -> bytes:
    return _seal(keys, _LINK_PURPOSE, _build_seal_name(server, user), _describe_tokens(tokens))


def open_link(keys: KeySet, server: str, user: str, ciphertext: bytes) -> LinkedTokens:
    return _parse_tokens(_open(keys, _LINK_PURPOSE, _build_seal_name(server, user), ciphertext))


def seal_revocation(keys: KeySet, revocation_id: str, tokens: LinkedTokens) -> bytes:
    """Encrypt tokens that are to be revoked. They belong to no person any more, only to their revocation."""
    return _seal(keys, _REVOCATION_PURPOSE, revocation_id, _describe_tokens(tokens))


def open_revocation(keys: KeySet, revocation_id: str, ciphertext: bytes) -> LinkedTokens:
    return _parse_tokens(_open(keys, _REVOCATION_PURPOSE, revocation_id, ciphertext))


def seal_sign_in(keys: KeySet, server: str, user: str, sign_in: PendingAuthorization) -> bytes:
    return _seal(keys, _SIGN_IN_PURPOSE, _build_seal_name(server, user), asdict(sign_in))


def open_sign_in(keys: KeySet, server: str, user: str, ciphertext: bytes) -> PendingAuthorization:
    data = _open(keys, _SIGN_IN_PURPOSE, _build_seal_name(server, user), ciphertext)
    endpoint, scopes = _parse_endpoint(data.pop("endpoint")), tuple(data.pop("scopes"))
    return PendingAuthorization(**data, endpoint=endpoint, scopes=scopes)


def seal_client(keys: KeySet, server: str, redirect_uri: str, client: OAuthClient) -> bytes:
    return _seal(keys, _CLIENT_PURPOSE, server, {"back_to": redirect_uri, "client": asdict(client)})


def open_client(keys: KeySet, server: str, redirect_uri: str, ciphertext: bytes) -> OAuthClient | None:
    """Decrypt a client registration; None if its redirect URI is no longer ours."""
    data = _open(keys, _CLIENT_PURPOSE, server, ciphertext)
    return OAuthClient(**data["client"]) if data["back_to"] == redirect_uri else None


def strip_client_secret(endpoint: TokenEndpoint) -> TokenEndpoint:
    return replace(endpoint, client=replace(endpoint.client, secret=None))


def add_client_secret(endpoint: TokenEndpoint, secret: str) -> TokenEndpoint:
    return replace(endpoint, client=replace(endpoint.client, secret=secret))


def _describe_tokens(tokens: LinkedTokens) -> dict[str, Any]:
    return {"access": tokens.access, "refresh": tokens.refresh, "endpoint": asdict(tokens.endpoint)}


def _parse_tokens(data: dict[str, Any]) -> LinkedTokens:
    return LinkedTokens(access=data["access"], refresh=data["refresh"], endpoint=_parse_endpoint(data["endpoint"]))


def _parse_endpoint(data: dict[str, Any]) -> TokenEndpoint:
    return TokenEndpoint(url=data["url"], resource=data["resource"], client=OAuthClient(**data["client"]))


def _build_seal_name(server: str, user: str) -> str:
    # The name of a server contains no space.
    return f"{server} {user}"


def _seal(keys: KeySet, kind: str, name: str, data: dict[str, Any]) -> bytes:
    return keys.seal(name, kind, orjson.dumps({"v": _FORMAT_VERSION, **data}))


def _open(keys: KeySet, kind: str, name: str, ciphertext: bytes) -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(keys.unseal(name, kind, ciphertext))
    if data.pop("v") != _FORMAT_VERSION:
        raise ValueError("a linked account was stored in a format that this release does not support")
    return data
