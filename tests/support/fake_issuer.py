"""An issuer under the tests' control: keys, a JWK Set, tokens of any shape, a clock that is told the time."""

import base64
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from deputize.core.clock import Clock
from deputize.core.settings import IdentitySettings, IssuerSettings
from deputize.govern.identity.token_verifier import TokenVerifier

NOW = 1_800_000_000
ISSUER = "https://issuer.example"
AUDIENCE = "https://gateway.example"
Algorithm = Literal["RS256", "ES256", "EdDSA"]
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@cache
def make_private_key(algorithm: str, number: int) -> PrivateKey:
    match algorithm:
        case "RS256":
            return rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def make_jwk(algorithm: str, *, kid: str | None, number: int = 0) -> dict[str, Any]:
    described = jwt.get_algorithm_by_name(algorithm).to_jwk(make_private_key(algorithm, number).public_key())
    entry: dict[str, Any] = {**json.loads(described), "use": "sig"}
    # PyJWT describes every key as one for verifying; issuers leave that out as often as not.
    entry.pop("key_ops", None)
    return entry if kid is None else {**entry, "kid": kid}


@dataclass
class ManualTime:
    """Seconds since the epoch, and since the test began; both move together."""

    seconds: float = 0.0

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: 100.0 + self.seconds, epoch_ms=lambda: int((NOW + self.seconds) * 1000))


@dataclass
class FakeIssuer:
    """One issuer, published at a URL that counts how often it is asked."""

    keys: list[dict[str, Any]] = field(default_factory=lambda: [make_jwk("EdDSA", kid="ed")])
    time: ManualTime = field(default_factory=ManualTime)
    fetch_count: int = 0
    is_down: bool = False

    async def fetch(self, url: str) -> bytes:
        self.fetch_count += 1
        if self.is_down:
            raise OSError("nobody answers")
        return json.dumps({"keys": self.keys}).encode()

    def issuer(self, **changes: Any) -> IssuerSettings:
        return IssuerSettings.model_validate(
            {
                "issuer": ISSUER,
                "audience": AUDIENCE,
                "jwks_url": f"{ISSUER}/jwks",
                "tenant": "acme",
                **changes,
            }
        )

    def verifier(self, *, token_cache_seconds: int = 30, **changes: Any) -> TokenVerifier:
        identity = IdentitySettings(
            issuers=(self.issuer(**changes),), token_cache_seconds=token_cache_seconds, leeway_seconds=5
        )
        return TokenVerifier(identity, self.time.clock, self.fetch)


def make_claims(**changes: Any) -> dict[str, Any]:
    """The claims of a good token; a change to None leaves that claim out."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ana", "iat": NOW, "exp": NOW + 300, "jti": "t-1"}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def sign_token(
    *,
    algorithm: str = "EdDSA",
    kid: str | None = "ed",
    number: int = 0,
    headers: dict[str, Any] | None = None,
    **changes: Any,
) -> bytes:
    named = {} if kid is None else {"kid": kid}
    key = make_private_key(algorithm, number)
    return jwt.encode(make_claims(**changes), key, algorithm=algorithm, headers={**named, **(headers or {})}).encode()


def encode_base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def make_unsigned_token(header: dict[str, Any], body: Any, signature: bytes = b"") -> bytes:
    return b".".join(
        (
            encode_base64url(json.dumps(header).encode()),
            encode_base64url(json.dumps(body).encode()),
            encode_base64url(signature),
        )
    )
