"""Signed results of contract tests: whose are accepted."""

from pathlib import Path
from uuid import UUID

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.govern.identity.attestations import (
    AttestationRefused,
    ContractTestAttestation,
    sign_attestation,
    verify_attestation,
)
from deputize.govern.identity.signing_keys import SigningKey

ISSUER = "https://staging.example/t/dev"
RESULT = ContractTestAttestation(
    jti=UUID(int=7), iat=1_900_000_000, tool="crm.get", version="1.0.0", digest=f"sha256:{'a' * 64}", verdict="passed",
    cases=3, failures=0,
)  # fmt: skip


def make_key(kid: str = "one") -> SigningKey:
    return SigningKey(
        tenant="dev", issuer=ISSUER, audience="x", kid=kid, private=Ed25519PrivateKey.from_private_bytes(bytes(32))
    )


def write_jwks(folder: Path, *, kid: str = "one") -> Path:
    public = jwt.algorithms.OKPAlgorithm.to_jwk(make_key().private.public_key(), as_dict=True)
    file = folder / "jwks.json"
    file.write_bytes(
        orjson.dumps({"keys": [{"kty": public["kty"], "crv": public["crv"], "x": public["x"], "kid": kid}]})
    )
    return file


async def test_a_result_of_a_trusted_gateway_is_read_as_it_was_signed(tmp_path: Path) -> None:
    text = sign_attestation(make_key(), RESULT)
    assert await verify_attestation(text, "prod", None, {ISSUER: write_jwks(tmp_path)}) == RESULT


async def test_a_result_of_an_unknown_gateway_key_or_file_is_refused(tmp_path: Path) -> None:
    text = sign_attestation(make_key(), RESULT)
    for trusted, expected in (
        ({}, "is not trusted"),
        ({ISSUER: None}, "set jwks_file"),
        ({ISSUER: tmp_path / "none.json"}, "cannot be read"),
        ({ISSUER: write_jwks(tmp_path, kid="two")}, "not in the file"),
    ):
        with pytest.raises(AttestationRefused, match=expected):
            await verify_attestation(text, "prod", None, trusted)


@pytest.mark.parametrize(
    ("typ", "claims", "expected"),
    [
        ("at+jwt", {}, "its type is not"),
        ("contract-test+jwt", {"verdict": "perfect"}, "its claim verdict is invalid"),
        ("contract-test+jwt", {"failures": None}, "its signature or form is invalid"),
    ],
)
async def test_another_type_or_form_is_refused(
    tmp_path: Path, typ: str, claims: dict[str, object], expected: str
) -> None:
    merged = {**RESULT.model_dump(mode="json"), "iss": ISSUER, **claims}
    text = jwt.encode(
        {name: value for name, value in merged.items() if value is not None},
        make_key().private, algorithm="EdDSA", headers={"kid": "one", "typ": typ},
    )  # fmt: skip
    with pytest.raises(AttestationRefused, match=expected):
        await verify_attestation(text, "prod", None, {ISSUER: write_jwks(tmp_path)})
