"""The generator of bad tokens, at the verifier itself: none gets through, and its good ones do."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from deputize.core.clock import Clock
from deputize.core.errors import PermissionProblem
from deputize.core.settings import IdentitySettings, IssuerSettings
from deputize.govern.identity.token_verifier import TokenVerifier
from proofs.confused_deputy.bad_tokens import BadToken, TokenMaterial, generate_bad_tokens
from proofs.kit.idp.keys import generate_keys

_ISSUER, _AUDIENCE = "http://127.0.0.1:9999", "http://127.0.0.1:7070"
_AT_LEAST = 1000

pytestmark = [pytest.mark.requirement("GOV-1"), pytest.mark.nightly]


def _claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    good = {"iss": _ISSUER, "aud": _AUDIENCE, "sub": "user-0", "tenant": "acme", "iat": now, "exp": now + 3600}
    return {**good, "jti": "t-1", "scope": "proof:write", "client_id": "people", **changes}


@pytest.fixture(scope="module")
def material() -> TokenMaterial:
    keys = generate_keys("idp")
    good = {key.algorithm: key.sign(_claims()) for key in keys}
    lent = _claims(iss=f"{_AUDIENCE}/t/acme", act={"sub": "agent-0"}, tools=[], grants=[])
    return TokenMaterial(
        keys=keys,
        good_tokens=good,
        plain_tokens=good,
        id_token=keys[0].sign(_claims(aud="people"), typ=None),
        delegated_token=generate_keys("ours")[2].sign(lent),
        trap_url="http://127.0.0.1:1",
    )


@pytest.fixture
def verifier(material: TokenMaterial, tmp_path: Path) -> TokenVerifier:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [key.to_jwk(include_private=False) for key in material.keys]}))
    issuer = IssuerSettings(issuer=_ISSUER, audience=_AUDIENCE, jwks_file=file, tenant_claim="tenant", tenants=("*",))

    async def fetch(url: str) -> bytes:
        raise AssertionError(f"a token made the gateway fetch {url}")

    return TokenVerifier(IdentitySettings(issuers=(issuer,)), Clock(), fetch)


async def test_every_good_token_is_accepted(material: TokenMaterial, verifier: TokenVerifier) -> None:
    for token in material.good_tokens.values():
        assert (await verifier.verify_caller(token.encode())).user == "user-0"


async def test_no_bad_token_is_accepted_and_each_is_refused_for_itself(
    material: TokenMaterial, verifier: TokenVerifier
) -> None:
    bad = generate_bad_tokens(material)
    assert len({each.token for each in bad}) >= _AT_LEAST
    assert len({each.label for each in bad}) == len(bad)
    assert [each.label for each in bad if not await _is_refused(verifier, each)] == []


async def _is_refused(verifier: TokenVerifier, bad: BadToken) -> bool:
    try:
        await verifier.verify_caller(bad.token.encode("latin-1"))
    except PermissionProblem:
        return True
    return False
