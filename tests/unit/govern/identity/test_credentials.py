"""The token a tool acts with upstream: for one service, for one call, in the name of everybody it is for."""

from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.caller import Caller
from deputize.core.contract import Auth
from deputize.core.errors import CredentialMissing
from deputize.govern.identity.credentials import mint, reading
from deputize.govern.identity.signing import SigningKey
from tests.unit.catalog.contracts import contract

pytestmark = pytest.mark.requirement("GOV-1")

NOW = 1_800_000_000.25
KEY = SigningKey(
    tenant="acme", issuer="https://gateway.example/t/acme", audience="https://gateway.example", kid="k",
    private=Ed25519PrivateKey.generate(),
)  # fmt: skip
CALLER = Caller(tenant="acme", user="ana", agents=("worker", "planner"), scopes=frozenset({"crm:read", "hr:read"}))


def _minted(audience: str | None = "https://crm.example", *, caller: Caller = CALLER, seconds: float = 2.0) -> str:
    declared = contract(auth=Auth(scopes=("crm:read",), credential="delegated", audience=audience))
    return mint(KEY, caller, declared, call_id="call-1", seconds=seconds, now=NOW)


def _claims(token: str) -> dict[str, Any]:
    return dict(
        jwt.decode(
            token,
            KEY.private.public_key(),
            algorithms=["EdDSA"],
            options={"verify_aud": False, "verify_exp": False, "verify_iat": False},
        )
    )


def test_it_says_for_whom_by_whom_and_for_which_call() -> None:
    token = _minted()
    assert _claims(token) == {
        "iss": KEY.issuer, "aud": "https://crm.example", "sub": "ana",
        "act": {"sub": "worker", "act": {"sub": "planner"}}, "scope": "crm:read", "jti": "call-1",
        "iat": 1_800_000_000, "exp": 1_800_000_003,
    }  # fmt: skip
    assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "kid": "k", "typ": "at+jwt"}


def test_a_user_without_agents_acts_without_any() -> None:
    assert "act" not in _claims(_minted(caller=Caller(tenant="acme", user="ana")))


def test_it_ends_with_the_call_however_long_is_asked_for() -> None:
    assert _claims(_minted(seconds=9999))["exp"] <= NOW + 5 + 1
    assert _claims(_minted(seconds=0.1))["exp"] > NOW


@pytest.mark.parametrize("audience", [None, "https://gateway.example", "https://gateway.example/"])
def test_no_tool_gets_a_token_for_nobody_or_for_this_gateway(audience: str | None) -> None:
    with pytest.raises(CredentialMissing):
        _minted(audience)


def test_no_key_signs_for_another_tenant() -> None:
    with pytest.raises(CredentialMissing):
        _minted(caller=Caller(tenant="other", user="ana"))


def test_the_key_shows_itself_to_nobody() -> None:
    assert "Ed25519" not in repr(KEY)


@pytest.mark.requirement("GOV-4")
def test_of_a_tools_scopes_a_preview_gets_those_that_say_they_only_read() -> None:
    scopes = (
        "crm:read", "read:org", "files.readonly", "https://x.example/auth/read-only", "crm:READ",
        "crm:write", "crm:read-write", "crm:readwrite", "thread:write", "spread", "crm:admin",
    )  # fmt: skip
    declared = contract(auth=Auth(scopes=scopes, credential="delegated", audience="https://crm.example"))
    assert reading(declared) == scopes[:5]
    token = mint(KEY, CALLER, declared, call_id="c", seconds=1.0, now=NOW, scopes=reading(declared))
    assert _claims(token)["scope"].split() == list(scopes[:5])
