"""What of the settings about identity could never work, or would not be safe, is said before any token is verified."""

from pathlib import Path
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.core.settings import IdentitySettings, OperatorClientSettings
from deputize.govern.identity.issuer_checks import check_issuers

pytestmark = pytest.mark.requirement("GOV-2")

CLIENT: dict[str, Any] = {"client_id": "ci", "jwks_file": Path("ci.jwks.json"), "tenants": ("acme",)}


def check(*clients: dict[str, Any], public_url: str | None = "https://gateway.example") -> None:
    operators = tuple(OperatorClientSettings(**client) for client in clients)
    check_issuers(IdentitySettings(operators=operators, public_url=public_url))


def test_an_operator_client_with_keys_and_tenants_is_accepted() -> None:
    check(CLIENT, {**CLIENT, "client_id": "cd", "jwks_file": None, "jwks_url": "https://ci.example/jwks"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"jwks_file": None}, "exactly one of jwks_file and jwks_url"),
        ({"jwks_url": "https://ci.example/jwks"}, "exactly one of jwks_file and jwks_url"),
        ({"tenants": ("*",)}, "name each tenant"),
        ({"tenants": ("acme", "Beta")}, "name each tenant"),
    ],
)
def test_an_operator_client_that_could_not_work_or_is_too_wide_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check({**CLIENT, **changes})


def test_operator_clients_need_their_own_names_and_a_gateway_that_issues_tokens() -> None:
    with pytest.raises(ConfigError, match="listed twice"):
        check(CLIENT, CLIENT)
    with pytest.raises(ConfigError, match=r"set identity\.public_url"):
        check(CLIENT, public_url=None)


@pytest.mark.parametrize("changes", [{"algorithms": ("HS256",)}, {"tenants": ()}, {"scopes": ()}, {"client_id": "a b"}])
def test_an_operator_client_has_safe_algorithms_a_name_and_something_to_do(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        OperatorClientSettings(**{**CLIENT, **changes})


def test_an_issuer_without_an_audience_expects_tokens_for_this_gateway() -> None:
    identity = IdentitySettings.model_validate(
        {
            "public_url": "https://gateway.example",
            "issuers": [
                {"issuer": "https://a", "tenant": "a"},
                {"issuer": "https://b", "audience": "b", "tenant": "b"},
            ],
        }
    )
    assert [each.audience for each in identity.issuers] == ["https://gateway.example", "b"]
