"""Signing keys that the proof makes and hands to the provider, so that it can also sign what no provider would sign."""

import json
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_MAKERS: dict[str, type[jwt.algorithms.Algorithm]] = {
    "RS256": jwt.algorithms.RSAAlgorithm,
    "ES256": jwt.algorithms.ECAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    kid: str
    algorithm: str
    private_key: PrivateKey

    def to_jwk(self, *, include_private: bool) -> dict[str, Any]:
        key = self.private_key if include_private else self.private_key.public_key()
        raw_jwk: Any = _MAKERS[self.algorithm].to_jwk(key)
        parts = json.loads(raw_jwk) if isinstance(raw_jwk, str) else raw_jwk
        # PyJWT adds operations to some; the provider wants use alone.
        parts.pop("key_ops", None)
        return {**parts, "kid": self.kid, "alg": self.algorithm, "use": "sig"}

    def sign(self, claims: dict[str, Any], *, typ: str | None = "at+jwt", **headers: Any) -> str:
        """A token as the provider would make it, whatever the claims say."""
        header_fields = {"kid": self.kid, "typ": typ, **headers}
        return jwt.encode(claims, self.private_key, algorithm=self.algorithm, headers=header_fields)


def generate_keys(generation: str) -> tuple[SigningKey, ...]:
    """One key of each kind; `generation` tells those of a rotation apart."""
    private_keys: dict[str, PrivateKey] = {
        "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }
    return tuple(
        SigningKey(kid=f"{generation}-{algorithm.lower()}", algorithm=algorithm, private_key=key)
        for algorithm, key in private_keys.items()
    )
