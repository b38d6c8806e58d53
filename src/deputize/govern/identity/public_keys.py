"""Parse the public keys that issuers publish, each usable with one algorithm. Pure."""

from typing import Any

import jwt
import orjson

_MAX_KEYS = 100
_KEY_TYPES = {"RS256": ("RSA", None), "ES256": ("EC", "P-256"), "EdDSA": ("OKP", "Ed25519")}
_PUBLIC_PARTS = frozenset({"kty", "crv", "x", "y", "n", "e", "kid"})


def parse_jwks(document: bytes, algorithms: tuple[str, ...]) -> tuple[jwt.PyJWK, ...]:
    """Parse the signing keys of a JWK Set that fit the algorithms; ignore all others, as RFC 7517 requires."""
    jwks = orjson.loads(document)
    entries = jwks.get("keys") if isinstance(jwks, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the document is not a JWK Set")
    keys = (load_usable_key(entry, algorithms) for entry in entries[:_MAX_KEYS] if isinstance(entry, dict))
    return tuple(key for key in keys if key is not None)


def load_usable_key(entry: dict[str, Any], algorithms: tuple[str, ...]) -> jwt.PyJWK | None:
    """Load the key of a JWK, or return None if none of the algorithms can verify signatures with it."""
    key_type = (entry.get("kty"), entry.get("crv"))
    algorithm = next((name for name in algorithms if _KEY_TYPES[name] == key_type), None)
    if algorithm is None or entry.get("alg", algorithm) != algorithm or entry.get("use", "sig") != "sig":
        return None
    # Only the public parts, so that a private key in the file by mistake is not loaded.
    public = {part: value for part, value in entry.items() if part in _PUBLIC_PARTS}
    try:
        return jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
