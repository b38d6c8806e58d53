"""The issuer of `deputize dev`: a key made in the project's folder, and tokens signed with it.

Whoever can read the folder can be anybody, which is right on one developer's machine and nowhere else:
`deputize serve` refuses this issuer.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.canonical import canonical
from deputize.core.clock import Clock
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Issuer, Settings
from deputize.govern.identity.claims import is_tenant
from deputize.store.private_file import read_private, write_once, write_over

ISSUER = "urn:deputize:development"
AUDIENCE = "deputize"
TENANT_CLAIM = "tenant"
_KEY_FILE = "development-issuer.pem"
_JWKS_FILE = "development-issuer.jwks.json"


def development_issuer(folder: Path) -> Issuer:
    """The issuer whose tokens `mint` makes, with its key made now if the folder has none."""
    key = _private_key(folder)
    jwks = folder / _JWKS_FILE
    # Always written from the key: a file left over from another key would refuse every token.
    write_over(jwks, orjson.dumps({"keys": [_public_jwk(key)]}))
    return Issuer(
        issuer=ISSUER,
        audience=AUDIENCE,
        jwks_file=jwks,
        algorithms=("EdDSA",),
        tenant_claim=TENANT_CLAIM,
        trust="trusted",
        human=True,
        development=True,
    )


def mint(
    folder: Path,
    *,
    subject: str = "developer",
    agent: str | None = None,
    scopes: Iterable[str] = (),
    tools: Mapping[str, str] | None = None,
    tenant: str = "dev",
    lifetime: int = 3600,
    session: str | None = None,
    clock: Clock | None = None,
) -> str:
    """A token of the development issuer. `tools` maps tool names to version ranges; None limits nothing."""
    if not is_tenant(tenant):
        raise Misconfigured(f"{tenant!r} cannot be a tenant: use lower-case letters, digits, - and _, at most 63.")
    clock = clock or Clock()
    now = clock.epoch_ms() // 1000
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "iat": now,
        "exp": now + lifetime,
        "jti": clock.new_id(),
        "scope": " ".join(scopes),
        TENANT_CLAIM: tenant,
    }
    if agent is not None:
        claims["act"] = {"sub": agent}
    if tools is not None:
        claims["tools"] = [{"tool_id": tool, "version_range": versions} for tool, versions in tools.items()]
    if session is not None:
        claims["sid"] = session
    key = _private_key(folder)
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": _public_jwk(key)["kid"]})


def refuse_development_issuers(settings: Settings) -> None:
    """Called by `serve` before anything is opened."""
    if any(issuer.development or issuer.issuer == ISSUER for issuer in settings.identity.issuers):
        raise Misconfigured(
            "deputize serve does not accept the development issuer, whose key lies in a project folder: "
            "list your identity provider under [[identity.issuers]] in deputize.toml, or run deputize dev."
        )


def _private_key(folder: Path) -> Ed25519PrivateKey:
    path = folder / _KEY_FILE
    if not path.exists():
        fresh = Ed25519PrivateKey.generate()
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_once(path, fresh.private_bytes(encoding, form, serialization.NoEncryption()))
    remedy = "remove it and run deputize dev again"
    pem = read_private(path, what="The development key", remedy=remedy)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise Misconfigured(f"The development key at {path} is damaged: {remedy}.")
    return key


def _public_jwk(key: Ed25519PrivateKey) -> dict[str, str]:
    raw: dict[str, str] = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk = {"crv": raw["crv"], "kty": raw["kty"], "x": raw["x"]}
    thumbprint = hashlib.sha256(canonical(jwk)).hexdigest()[:16]
    return {**jwk, "alg": "EdDSA", "use": "sig", "kid": thumbprint}
