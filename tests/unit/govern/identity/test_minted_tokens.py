"""Minted tokens: for one service and one call, in the name of the user and all agents."""

from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.caller import Caller
from deputize.core.contract.contract import Auth
from deputize.core.errors import CredentialMissing
from deputize.govern.identity.minted_tokens import mint_call_token, select_read_scopes
from deputize.govern.identity.signing_keys import SigningKey
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-1")

NOW = 1_800_000_000.25
KEY = SigningKey(
    tenant="acme", issuer="https://gateway.example/t/acme", audience="https://gateway.example", kid="k",
    private=Ed25519PrivateKey.generate(),
)  # fmt: skip
CALLER = Caller(tenant="acme", user="ana", agents=("worker", "planner"), scopes=frozenset({"crm:read", "hr:read"}))


def _mint_token(audience: str | None = "https://crm.example", *, caller: Caller = CALLER, seconds: float = 2.0) -> str:
    declared = make_contract(auth=Auth(scopes=("crm:read",), credential="delegated", audience=audience))
    return mint_call_token(KEY, caller, declared, call_id="call-1", seconds=seconds, now=NOW)


def _decode_claims(token: str) -> dict[str, Any]:
    return dict(
        jwt.decode(
            token,
            KEY.private.public_key(),
            algorithms=["EdDSA"],
            options={"verify_aud": False, "verify_exp": False, "verify_iat": False},
        )
    )


def test_a_call_token_names_user_agents_and_call() -> None:
    token = _mint_token()
    assert _decode_claims(token) == {
        "iss": KEY.issuer, "aud": "https://crm.example", "sub": "ana",
        "act": {"sub": "worker", "act": {"sub": "planner"}}, "scope": "crm:read", "jti": "call-1",
        "iat": 1_800_000_000, "exp": 1_800_000_003,
    }  # fmt: skip
    assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "kid": "k", "typ": "at+jwt"}


def test_a_call_token_without_agents_has_no_act_claim() -> None:
    assert "act" not in _decode_claims(_mint_token(caller=Caller(tenant="acme", user="ana")))


def test_a_call_token_expires_with_the_call() -> None:
    assert _decode_claims(_mint_token(seconds=9999))["exp"] <= NOW + 5 + 1
    assert _decode_claims(_mint_token(seconds=0.1))["exp"] > NOW


@pytest.mark.parametrize("audience", [None, "https://gateway.example", "https://gateway.example/"])
def test_a_call_token_needs_an_upstream_audience(audience: str | None) -> None:
    with pytest.raises(CredentialMissing):
        _mint_token(audience)


def test_no_key_signs_for_another_tenant() -> None:
    with pytest.raises(CredentialMissing):
        _mint_token(caller=Caller(tenant="other", user="ana"))


def test_the_private_key_is_not_in_the_repr() -> None:
    assert "Ed25519" not in repr(KEY)


@pytest.mark.requirement("GOV-4")
def test_a_preview_gets_only_read_scopes() -> None:
    scopes = (
        "crm:read", "read:org", "files.readonly", "https://x.example/auth/read-only", "crm:READ",
        "crm:write", "crm:read-write", "crm:readwrite", "thread:write", "spread", "crm:admin",
    )  # fmt: skip
    declared = make_contract(auth=Auth(scopes=scopes, credential="delegated", audience="https://crm.example"))
    assert select_read_scopes(declared) == scopes[:5]
    token = mint_call_token(
        KEY, CALLER, declared, call_id="c", seconds=1.0, now=NOW, scopes=select_read_scopes(declared)
    )
    assert _decode_claims(token)["scope"].split() == list(scopes[:5])
