"""Public keys as issuers publish them, each usable with the one algorithm it is for. Pure."""

from typing import Any

import jwt
import orjson

_MAX_KEYS = 100
_FAMILIES = {"RS256": ("RSA", None), "ES256": ("EC", "P-256"), "EdDSA": ("OKP", "Ed25519")}
_PUBLIC_PARTS = frozenset({"kty", "crv", "x", "y", "n", "e", "kid"})


def parse_jwks(document: bytes, algorithms: tuple[str, ...]) -> tuple[jwt.PyJWK, ...]:
    """The signing keys in a JWK Set that fit the algorithms; others are passed over, as RFC 7517 asks."""
    parsed = orjson.loads(document)
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(listed, list):
        raise ValueError("this is not a JWK Set")
    keys = (usable_key(entry, algorithms) for entry in listed[:_MAX_KEYS] if isinstance(entry, dict))
    return tuple(key for key in keys if key is not None)


def usable_key(entry: dict[str, Any], algorithms: tuple[str, ...]) -> jwt.PyJWK | None:
    """The key a JWK describes, if one of the algorithms can use it for signatures."""
    family = (entry.get("kty"), entry.get("crv"))
    algorithm = next((name for name in algorithms if _FAMILIES[name] == family), None)
    if algorithm is None or entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    # Only the public parts: a private key left in a file by mistake is not read into memory.
    public = {part: value for part, value in entry.items() if part in _PUBLIC_PARTS}
    try:
        return jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
