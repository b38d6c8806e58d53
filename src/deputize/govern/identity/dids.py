"""Decentralized identifiers: `did:key`, which is its own key, and `did:web`, which names a document over https.

A DID is an issuer where the settings list it, or an agent that signs for itself when it is lent something. Only keys
the document puts under `assertionMethod` or `authentication` count. Above: `jwks.py` and `tokens.py`. Below: the one
egress client, handed in as `fetch`.
"""

import base64
import ipaddress
import re
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

from deputize.core.clock import Clock
from deputize.core.errors import Problem, TokenMalformed, TokenSignature, Unavailable
from deputize.govern.identity.discovery import Fetch
from deputize.govern.identity.public_keys import usable_key

ALGORITHMS = ("EdDSA", "ES256")
MAX_DID_LENGTH = 400
REMEMBERED_SECONDS = 60.0
_MOST_REMEMBERED = 1000
_MOST_METHODS = 50
_PURPOSES = ("assertionMethod", "authentication")
_WEB = re.compile(r"did:web:([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)(?:%3[Aa]([0-9]{1,5}))?((?::[A-Za-z0-9._~-]+)*)")
# The multicodec prefixes of the public keys we can verify with: Ed25519 (0xed) and compressed P-256 (0x1200).
_ED25519, _P256 = b"\xed\x01", b"\x80\x24"
_BASE58 = {letter: place for place, letter in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")}
# Reading base 58 takes time that grows with the square of the length; no key of ours is this long.
_LONGEST_KEY = 128


class NotADid(ValueError):
    """The text is no DID of a kind that is understood here."""


def is_did(text: str) -> bool:
    return text.startswith("did:")


def check_did(did: str) -> None:
    """Raises `NotADid` for what could never be resolved."""
    if did.startswith("did:key:"):
        _own_key(did)
    else:
        document_url(did)


def web_host(did: str) -> str | None:
    """The host whose document a `did:web` is, for whoever decides which hosts may be asked."""
    match = _WEB.fullmatch(did)
    return match[1] if match else None


def document_url(did: str) -> str:
    """Where the document of a `did:web` lies."""
    match = _WEB.fullmatch(did) if len(did) <= MAX_DID_LENGTH else None
    if match is None:
        raise NotADid("only did:key and did:web with a host name are understood here")
    host, port, path = match[1], match[2], match[3].replace(":", "/")
    if _is_address(host) or any(step.strip(".") == "" for step in path.split("/")[1:]):
        raise NotADid("a did:web names a host and a path on it, not an address or a way around")
    place = f"{host}:{port}" if port else host
    return f"https://{place}{path or '/.well-known'}/did.json"


def _is_address(host: str) -> bool:
    # The last label of a host name is never a number; resolvers read such names as addresses in odd notations.
    last = host.rsplit(".", 1)[-1].lower()
    if last.isdigit() or last.startswith("0x"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def key_name(did: str, key_id: str | None) -> str | None:
    """The full name of one of a DID's keys, from any of the ways a token may write it."""
    if key_id is None or key_id.startswith("did:"):
        return key_id
    return did + key_id if key_id.startswith("#") else f"{did}#{key_id}"


async def resolve(did: str, fetch: Fetch) -> tuple[jwt.PyJWK, ...]:
    """The keys that may speak for a DID, each named in full."""
    if did.startswith("did:key:"):
        return (_own_key(did),)
    document = orjson.loads(await fetch(document_url(did)))
    if not isinstance(document, dict) or document.get("id") != did:
        raise ValueError("the document at the DID's address is another one's")
    return _keys_of(document, did)


class Dids:
    """The keys of DIDs that agents sign with; resolved when met, remembered for a minute."""

    def __init__(self, clock: Clock, fetch: Fetch) -> None:
        self._clock = clock
        self._fetch = fetch
        self._known: dict[str, tuple[tuple[jwt.PyJWK, ...], float]] = {}

    async def key(self, did: str, algorithm: str, key_id: str | None) -> jwt.PyJWK:
        """The key a token says it was signed with, or the exact reason why there is none."""
        name = key_name(did, key_id)
        fitting = [key for key in await self._keys(did) if key.algorithm_name == algorithm]
        named = [key for key in fitting if key.key_id == name] if name is not None else fitting
        if len(named) != 1:
            raise TokenSignature("the token was signed with a key its DID does not publish for this")
        return named[0]

    async def _keys(self, did: str) -> tuple[jwt.PyJWK, ...]:
        known = self._known.get(did)
        if known is not None and known[1] > self._clock.monotonic():
            return known[0]
        try:
            check_did(did)
            keys = await resolve(did, self._fetch)
        except NotADid as error:
            raise TokenMalformed(f"the token's issuer is no DID: {error}") from error
        except (Problem, OSError, ValueError) as error:
            raise Unavailable("the keys of the token's DID cannot be read at the moment") from error
        self._known.pop(did, None)
        while len(self._known) >= _MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[did] = (keys, self._clock.monotonic() + REMEMBERED_SECONDS)
        return keys


def _own_key(did: str) -> jwt.PyJWK:
    encoded = did.removeprefix("did:key:")
    key = _multikey(encoded, f"{did}#{encoded}")
    if key is None:
        raise NotADid("this did:key holds no Ed25519 or P-256 key")
    return key


def _keys_of(document: dict[str, Any], did: str) -> tuple[jwt.PyJWK, ...]:
    listed = document.get("verificationMethod")
    methods = {
        key_name(did, each["id"]): each
        for each in (listed if isinstance(listed, list) else [])[:_MOST_METHODS]
        if isinstance(each, dict) and isinstance(each.get("id"), str)
    }
    keys: dict[str, jwt.PyJWK] = {}
    for purpose in _PURPOSES:
        named = document.get(purpose)
        for each in (named if isinstance(named, list) else [])[:_MOST_METHODS]:
            method = methods.get(key_name(did, each)) if isinstance(each, str) else each
            key = _method_key(method, did) if isinstance(method, dict) else None
            if key is not None and key.key_id is not None:
                keys.setdefault(key.key_id, key)
    return tuple(keys.values())


def _method_key(method: dict[str, Any], did: str) -> jwt.PyJWK | None:
    """The key of one verification method; a key that somebody else controls does not speak for this DID."""
    name = key_name(did, method["id"]) if isinstance(method.get("id"), str) else None
    if name is None or not name.startswith(f"{did}#") or method.get("controller", did) != did:
        return None
    described, encoded = method.get("publicKeyJwk"), method.get("publicKeyMultibase")
    if isinstance(described, dict):
        return usable_key({**described, "kid": name}, ALGORITHMS)
    return _multikey(encoded, name) if isinstance(encoded, str) else None


def _multikey(text: str, name: str) -> jwt.PyJWK | None:
    """A key in multibase: z for base 58, two bytes that say which kind, then the key."""
    try:
        raw = base58(text[1:]) if text[:1] == "z" else b""
        kind, key = raw[:2], raw[2:]
        if kind == _ED25519 and len(key) == 32:
            return usable_key({"kty": "OKP", "crv": "Ed25519", "x": _b64(key), "kid": name}, ALGORITHMS)
        if kind == _P256 and len(key) == 33:
            point = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), key).public_numbers()
            x, y = (_b64(number.to_bytes(32, "big")) for number in (point.x, point.y))
            return usable_key({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": name}, ALGORITHMS)
    except ValueError:
        return None
    return None


def base58(text: str) -> bytes:
    """The bytes behind Bitcoin's base 58. Ours: it is ten lines, and a package for it would be one more to trust."""
    if len(text) > _LONGEST_KEY:
        raise ValueError("this is longer than any key")
    number = 0
    for letter in text:
        if letter not in _BASE58:
            raise ValueError("this is not base 58")
        number = number * 58 + _BASE58[letter]
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
