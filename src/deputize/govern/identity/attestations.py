"""Sign and verify the results of contract tests, with the signing keys that a gateway publishes for each tenant.

An attestation is a JSON Web Signature of a type of its own, so that no verifier of access tokens accepts it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import jwt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deputize.core.contract.contract import SemVer, ToolRef
from deputize.govern.identity.public_keys import parse_jwks
from deputize.govern.identity.signing_keys import ALGORITHM, SigningKey, SigningKeys

TYPE: Final = "contract-test+jwt"
MAX_LENGTH: Final = 4_096
_REQUIRED_CLAIMS: Final = ("iss", "iat", "jti", "tool", "version", "digest", "verdict", "cases", "failures")


class AttestationRefused(Exception):
    """The attestation is not one that can be trusted; the message says why."""


class ContractTestAttestation(BaseModel):
    """The result of a contract test, as a gateway states it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    jti: UUID
    iat: int
    tool: ToolRef
    version: SemVer
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    verdict: Literal["passed", "failed", "unchecked"]
    cases: Annotated[int, Field(ge=1, le=1_000_000)]
    failures: Annotated[int, Field(ge=0, le=1_000_000)]
    seed: Annotated[int, Field(ge=0)] = 0


def sign_attestation(key: SigningKey, attestation: ContractTestAttestation) -> str:
    """Sign a result in the name of the tenant's issuer."""
    claims = {**attestation.model_dump(mode="json"), "iss": key.issuer}
    return jwt.encode(claims, key.private, algorithm=ALGORITHM, headers={"kid": key.kid, "typ": TYPE})


async def verify_attestation(
    text: str, tenant: str, signing_keys: SigningKeys | None, jwks_files: Mapping[str, Path | None]
) -> ContractTestAttestation:
    """Verify an attestation of this tenant's own gateway, or of an issuer that the operator trusts.

    `jwks_files` has the file with the keys of each other issuer; None for another tenant of this gateway.
    """
    kid, issuer = _read_unverified(text)
    own_tenant = None if signing_keys is None else signing_keys.parse_tenant(issuer)
    if own_tenant != tenant and issuer not in jwks_files:
        raise AttestationRefused(f"{issuer} is not trusted to test tools; name it in tools.tests.testers")
    if signing_keys is not None and own_tenant is not None:
        key = await signing_keys.load_public_key(own_tenant, kid)
    else:
        key = await asyncio.to_thread(_find_key, jwks_files[issuer], kid)
    try:
        claims = jwt.decode(
            text,
            key,
            algorithms=[ALGORITHM],
            issuer=issuer,
            # When it was made is compared with the age that admission allows.
            options={"require": list(_REQUIRED_CLAIMS), "verify_iat": False, "verify_aud": False},
        )
        return ContractTestAttestation.model_validate(claims)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise AttestationRefused(f"its claim {place} is invalid") from None
    except jwt.PyJWTError:
        raise AttestationRefused("its signature or form is invalid") from None


def _read_unverified(text: str) -> tuple[str, str]:
    try:
        header = jwt.get_unverified_header(text)
        claims: dict[str, Any] = jwt.decode(text, options={"verify_signature": False})
    except jwt.PyJWTError:
        raise AttestationRefused("it is not a JSON Web Signature") from None
    if header.get("typ") != TYPE:
        raise AttestationRefused(f"its type is not {TYPE}")
    return str(header.get("kid", "")), str(claims.get("iss", ""))


def _find_key(file: Path | None, kid: str) -> jwt.PyJWK:
    if file is None:
        raise AttestationRefused("the keys of its issuer are not known; set jwks_file in tools.tests.testers")
    try:
        keys: Sequence[jwt.PyJWK] = parse_jwks(file.read_bytes(), (ALGORITHM,))
    except (OSError, ValueError):
        raise AttestationRefused("the file with the keys of its issuer cannot be read") from None
    for key in keys:
        if key.key_id == kid:
            return key
    raise AttestationRefused("it is signed with a key that is not in the file of its issuer")
