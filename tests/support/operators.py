"""Let the administrators of tests be operators: the development issuer, marked as an issuer where operators sign in."""

from pathlib import Path

from deputize.core.settings import IdentitySettings, IssuerSettings
from deputize.govern.identity.dev_issuer import load_dev_issuer

# Longer than any run of the tests, which share gateways and tokens and set the clock. Settings refuse it, a copy not.
_LONG_SECONDS = 10**9


def load_operator_issuer(folder: Path) -> IssuerSettings:
    return load_dev_issuer(folder).model_copy(update={"development": False, "operator": True, "tenants": ("*",)})


def make_operator_identity(folder: Path, *more: IssuerSettings, public_url: str | None = None) -> IdentitySettings:
    """Identity settings in which a sign-in of an operator stays fresh."""
    identity = IdentitySettings(issuers=(load_operator_issuer(folder), *more), public_url=public_url)
    return identity.model_copy(update={"operator_fresh_seconds": _LONG_SECONDS})
