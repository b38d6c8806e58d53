"""Issue development tokens for `deputize dev`, signed with a key in the project folder.

Everyone who can read the folder can impersonate any user, so this is only for a developer's machine: `deputize serve`
rejects this issuer.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.canonical import canonicalize
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.settings import IssuerSettings, Settings
from deputize.govern.identity.claims import is_tenant_name
from deputize.store.private_file import read_private_file, replace_file, write_once

ISSUER = "urn:deputize:development"
AUDIENCE = "deputize"
# The user of the tokens that `deputize dev` makes for whoever runs it.
DEVELOPER = "developer"
TENANT_CLAIM = "tenant"
_KEY_FILE = "development-issuer.pem"
_JWKS_FILE = "development-issuer.jwks.json"


def load_dev_issuer(folder: Path) -> IssuerSettings:
    """Load the development issuer; create its key if the folder has none."""
    key = _load_private_key(folder)
    jwks = folder / _JWKS_FILE
    # Always rewritten from the key: with the file of an older key every token would be rejected.
    replace_file(jwks, orjson.dumps({"keys": [_build_public_jwk(key)]}))
    return IssuerSettings(
        issuer=ISSUER,
        audience=AUDIENCE,
        jwks_file=jwks,
        algorithms=("EdDSA",),
        tenant_claim=TENANT_CLAIM,
        trust="trusted",
        human=True,
        development=True,
    )


def mint_dev_token(
    folder: Path,
    *,
    subject: str = DEVELOPER,
    agent: str | None = None,
    scopes: Iterable[str] = (),
    tools: Mapping[str, str] | None = None,
    tenant: str = "dev",
    lifetime: int = 3600,
    session: str | None = None,
    clock: Clock | None = None,
) -> str:
    """Sign a token of the development issuer. `tools` maps tool names to version ranges; None allows all tools."""
    if not is_tenant_name(tenant):
        raise ConfigError(f"{tenant!r} is not a valid tenant name: use at most 63 lower-case letters, digits, - and _.")
    clock = clock or Clock()
    now = clock.epoch_ms() // 1000
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "iat": now,
        "exp": now + lifetime,
        "auth_time": now,
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
    key = _load_private_key(folder)
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": _build_public_jwk(key)["kid"]})


def reject_dev_issuers(settings: Settings) -> None:
    """Raise `ConfigError` if the settings list the development issuer; `deputize serve` checks this first."""
    if any(issuer.development or issuer.issuer == ISSUER for issuer in settings.identity.issuers):
        raise ConfigError(
            "deputize serve does not accept the development issuer, because its key is in a project folder: "
            "list your identity provider under [[identity.issuers]] in deputize.toml, or run deputize dev."
        )


def _load_private_key(folder: Path) -> Ed25519PrivateKey:
    path = folder / _KEY_FILE
    if not path.exists():
        fresh = Ed25519PrivateKey.generate()
        pem_encoding, pkcs8_format = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_once(path, fresh.private_bytes(pem_encoding, pkcs8_format, serialization.NoEncryption()))
    remedy = "delete it and run deputize dev again"
    pem = read_private_file(path, description="The development key", remedy=remedy)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"The development key at {path} is damaged: {remedy}.")
    return key


def _build_public_jwk(key: Ed25519PrivateKey) -> dict[str, str]:
    raw: dict[str, str] = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk = {"crv": raw["crv"], "kty": raw["kty"], "x": raw["x"]}
    thumbprint = hashlib.sha256(canonicalize(jwk)).hexdigest()[:16]
    return {**jwk, "alg": "EdDSA", "use": "sig", "kid": thumbprint}
