"""Resolve decentralized identifiers: `did:key`, which contains its key, and `did:web`, which names an https document.

A DID is either an issuer in the settings or an agent that signs its own actor token. Only keys listed under
`assertionMethod` or `authentication` are used. `fetch` is the one egress client.
"""

import base64
import ipaddress
import re
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

from deputize.core.clock import Clock
from deputize.core.errors import Problem, TokenMalformed, TokenSignatureInvalid, Unavailable
from deputize.govern.identity.oidc_discovery import Fetch
from deputize.govern.identity.public_keys import load_usable_key

ALGORITHMS = ("EdDSA", "ES256")
MAX_DID_LENGTH = 400
CACHE_SECONDS = 60.0
_MAX_CACHED_DIDS = 1000
_MAX_METHODS = 50
_PURPOSES = ("assertionMethod", "authentication")
_WEB = re.compile(r"did:web:([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)(?:%3[Aa]([0-9]{1,5}))?((?::[A-Za-z0-9._~-]+)*)")
# The multicodec prefixes of supported public keys: Ed25519 (0xed) and compressed P-256 (0x1200).
_ED25519, _P256 = b"\xed\x01", b"\x80\x24"
_BASE58 = {
    character: value for value, character in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
}
# Decoding base 58 takes quadratic time; no supported key is this long.
_MAX_KEY_LENGTH = 128


class InvalidDid(ValueError):
    """The text is not a DID of a supported kind."""


def is_did(text: str) -> bool:
    return text.startswith("did:")


def check_did(did: str) -> None:
    """Raise `InvalidDid` for a text that can never be resolved."""
    if did.startswith("did:key:"):
        _decode_did_key(did)
    else:
        build_document_url(did)


def parse_web_host(did: str) -> str | None:
    """Return the host of a `did:web`, for the egress allow list."""
    match = _WEB.fullmatch(did)
    return match[1] if match else None


def build_document_url(did: str) -> str:
    """Build the URL of the document of a `did:web`."""
    match = _WEB.fullmatch(did) if len(did) <= MAX_DID_LENGTH else None
    if match is None:
        raise InvalidDid("only did:key and did:web with a host name are supported")
    host, port, path = match[1], match[2], match[3].replace(":", "/")
    if _is_ip_address(host) or any(segment.strip(".") == "" for segment in path.split("/")[1:]):
        raise InvalidDid("a did:web must have a host name and a path without dot segments, not an IP address")
    authority = f"{host}:{port}" if port else host
    return f"https://{authority}{path or '/.well-known'}/did.json"


def _is_ip_address(host: str) -> bool:
    # The last label of a host name is never a number; resolvers read such names as IP addresses in unusual notations.
    last = host.rsplit(".", 1)[-1].lower()
    if last.isdigit() or last.startswith("0x"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def qualify_key_id(did: str, key_id: str | None) -> str | None:
    """Return the full id of a DID's key, from any form that a token may use."""
    if key_id is None or key_id.startswith("did:"):
        return key_id
    return did + key_id if key_id.startswith("#") else f"{did}#{key_id}"


async def resolve_did(did: str, fetch: Fetch) -> tuple[jwt.PyJWK, ...]:
    """Resolve a DID to its verification keys, each with its full id."""
    if did.startswith("did:key:"):
        return (_decode_did_key(did),)
    document = orjson.loads(await fetch(build_document_url(did)))
    if not isinstance(document, dict) or document.get("id") != did:
        raise ValueError("the document at the DID's URL has another id")
    return _parse_document_keys(document, did)


class DidKeys:
    """The keys of agents' DIDs, resolved on demand and cached for a minute."""

    def __init__(self, clock: Clock, fetch: Fetch) -> None:
        self._clock = clock
        self._fetch = fetch
        self._cache: dict[str, tuple[tuple[jwt.PyJWK, ...], float]] = {}

    async def get_key(self, did: str, algorithm: str, key_id: str | None) -> jwt.PyJWK:
        """Return the key that a token names, or raise the exact reason why there is none."""
        name = qualify_key_id(did, key_id)
        candidates = [key for key in await self._load_keys(did) if key.algorithm_name == algorithm]
        matches = [key for key in candidates if key.key_id == name] if name is not None else candidates
        if len(matches) != 1:
            raise TokenSignatureInvalid("the token is signed with a key that its DID does not publish for signing")
        return matches[0]

    async def _load_keys(self, did: str) -> tuple[jwt.PyJWK, ...]:
        entry = self._cache.get(did)
        if entry is not None and entry[1] > self._clock.monotonic():
            return entry[0]
        try:
            check_did(did)
            keys = await resolve_did(did, self._fetch)
        except InvalidDid as error:
            raise TokenMalformed(f"the token's issuer is not a valid DID: {error}") from error
        except (Problem, OSError, ValueError) as error:
            raise Unavailable("the keys of the token's DID cannot be fetched at the moment") from error
        self._cache.pop(did, None)
        while len(self._cache) >= _MAX_CACHED_DIDS:
            del self._cache[next(iter(self._cache))]
        self._cache[did] = (keys, self._clock.monotonic() + CACHE_SECONDS)
        return keys


def _decode_did_key(did: str) -> jwt.PyJWK:
    multibase = did.removeprefix("did:key:")
    key = _decode_multikey(multibase, f"{did}#{multibase}")
    if key is None:
        raise InvalidDid("this did:key contains no Ed25519 or P-256 key")
    return key


def _parse_document_keys(document: dict[str, Any], did: str) -> tuple[jwt.PyJWK, ...]:
    method_list = document.get("verificationMethod")
    methods = {
        qualify_key_id(did, each["id"]): each
        for each in (method_list if isinstance(method_list, list) else [])[:_MAX_METHODS]
        if isinstance(each, dict) and isinstance(each.get("id"), str)
    }
    keys: dict[str, jwt.PyJWK] = {}
    for purpose in _PURPOSES:
        references = document.get(purpose)
        for each in (references if isinstance(references, list) else [])[:_MAX_METHODS]:
            method = methods.get(qualify_key_id(did, each)) if isinstance(each, str) else each
            key = _parse_method_key(method, did) if isinstance(method, dict) else None
            if key is not None and key.key_id is not None:
                keys.setdefault(key.key_id, key)
    return tuple(keys.values())


def _parse_method_key(method: dict[str, Any], did: str) -> jwt.PyJWK | None:
    """Parse the key of a verification method; return None if another DID controls it."""
    name = qualify_key_id(did, method["id"]) if isinstance(method.get("id"), str) else None
    if name is None or not name.startswith(f"{did}#") or method.get("controller", did) != did:
        return None
    jwk, multibase = method.get("publicKeyJwk"), method.get("publicKeyMultibase")
    if isinstance(jwk, dict):
        return load_usable_key({**jwk, "kid": name}, ALGORITHMS)
    return _decode_multikey(multibase, name) if isinstance(multibase, str) else None


def _decode_multikey(text: str, name: str) -> jwt.PyJWK | None:
    """Decode a multibase key: `z` for base 58, two bytes for the key type, then the key."""
    try:
        raw = decode_base58(text[1:]) if text[:1] == "z" else b""
        kind, key = raw[:2], raw[2:]
        if kind == _ED25519 and len(key) == 32:
            return load_usable_key(
                {"kty": "OKP", "crv": "Ed25519", "x": _encode_base64url(key), "kid": name}, ALGORITHMS
            )
        if kind == _P256 and len(key) == 33:
            point = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), key).public_numbers()
            x, y = (_encode_base64url(number.to_bytes(32, "big")) for number in (point.x, point.y))
            return load_usable_key({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": name}, ALGORITHMS)
    except ValueError:
        return None
    return None


def decode_base58(text: str) -> bytes:
    """Decode Bitcoin's base 58. Written here, because ten lines are safer than another dependency."""
    if len(text) > _MAX_KEY_LENGTH:
        raise ValueError("the text is longer than any supported key")
    number = 0
    for character in text:
        if character not in _BASE58:
            raise ValueError("the text is not base 58")
        number = number * 58 + _BASE58[character]
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
