"""Which issuer's subjects keep their bare names is chosen by the settings, never by a token."""

from typing import Any

import pytest

from deputize.core.settings import IssuerSettings
from deputize.govern.identity.primary_issuers import choose_primary_issuer, list_subject_issuers

pytestmark = pytest.mark.requirement("GOV-1")


def _make_issuer(name: str, **fields: Any) -> IssuerSettings:
    return IssuerSettings(issuer=name, audience="a", **fields)


SHARED = _make_issuer("https://shared", tenant_claim="org", tenants=("acme", "beta-*"))
DEVELOPMENT = _make_issuer("urn:development", tenant_claim="tenant", development=True)
ACME = _make_issuer("https://acme", tenant="acme")


@pytest.mark.parametrize(
    ("issuers", "tenant", "primary"),
    [
        ((SHARED, ACME), "acme", "https://acme"),
        ((SHARED, ACME), "beta-1", "https://shared"),
        ((SHARED, ACME), "gamma", None),
        ((SHARED, DEVELOPMENT), "acme", "urn:development"),
        ((SHARED, _make_issuer("https://new", tenant="acme", same_subjects_as="https://old")), "acme", "https://old"),
    ],
)
def test_the_most_specific_issuer_is_primary(
    issuers: tuple[IssuerSettings, ...], tenant: str, primary: str | None
) -> None:
    assert choose_primary_issuer(issuers, tenant) == primary


def test_issuers_with_the_same_subjects_count_once() -> None:
    linked = _make_issuer("https://console", tenant="acme", same_subjects_as="https://acme")
    assert list_subject_issuers((SHARED, ACME, linked), "acme") == ["https://shared", "https://acme"]
