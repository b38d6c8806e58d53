"""Check the issuers of the settings before any token is verified: what could never work, or would not be safe."""

import re

from deputize.core.caller import PROCESS_ISSUER, TERMINAL_ISSUER
from deputize.core.config_error import ConfigError
from deputize.core.settings import IdentitySettings, IssuerSettings, OperatorClientSettings
from deputize.govern.identity.claims import is_tenant_name
from deputize.govern.identity.dids import InvalidDid, check_did, is_did
from deputize.govern.identity.jwks import has_did_keys
from deputize.govern.identity.oidc_discovery import is_discoverable
from deputize.govern.identity.primary_issuers import get_subject_issuer

_TENANT_PATTERN = re.compile(r"[a-z0-9*][a-z0-9_*-]{0,62}")
# Stored subjects name their issuer up to the first space.
_ISSUER_NAME = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]{1,255}")


def check_issuers(settings: IdentitySettings) -> None:
    """Raise `ConfigError` for the first issuer in the settings that cannot work."""
    names = [issuer.issuer for issuer in settings.issuers]
    for issuer in settings.issuers:
        error = _find_issuer_error(issuer, names, settings.public_url) or _find_subject_error(issuer, settings)
        if error:
            raise ConfigError(f"Issuer {issuer.issuer!r} in [identity]: {error}.")
    for client in settings.operators:
        error = _find_operator_error(client, settings)
        if error:
            raise ConfigError(f"Operator client {client.client_id!r} in [[identity.operators]]: {error}.")


def _find_issuer_error(issuer: IssuerSettings, names: list[str], public_url: str | None) -> str | None:
    if names.count(issuer.issuer) > 1:
        return "it is listed twice; keep one entry"
    if issuer.issuer in (PROCESS_ISSUER, TERMINAL_ISSUER):
        return "this name is reserved for the gateway itself; use the name of your issuer"
    if not issuer.audience:
        return "it has no audience; set it to the aud of tokens for this gateway, or set public_url under [identity]"
    if public_url is not None and issuer.issuer.startswith(f"{public_url.rstrip('/')}/t/"):
        return "this gateway itself issues tokens under this name; remove the entry"
    if issuer.console_audience is not None and (error := _find_console_error(issuer)):
        return error
    if issuer.operator and (issuer.development or is_did(issuer.issuer)):
        return "it is marked operator, but people do not sign in there; remove operator"
    if issuer.jwks_url is not None and issuer.jwks_file is not None:
        return "set at most one of jwks_url and jwks_file"
    if issuer.jwks_url is None and issuer.jwks_file is None and not _can_find_keys(issuer):
        return "its keys cannot be found by this name; set jwks_url or jwks_file"
    if (issuer.tenant is None) == (issuer.tenant_claim is None):
        return "set exactly one of tenant and tenant_claim"
    if issuer.tenant is not None and not is_tenant_name(issuer.tenant):
        return "its tenant is not a valid name; use at most 63 lower-case letters, digits, - and _"
    if error := _find_tenants_error(issuer):
        return error
    if not issuer.algorithms:
        return "its algorithms are empty; remove the setting to allow all that are safe"
    return None


def _find_tenants_error(issuer: IssuerSettings) -> str | None:
    if issuer.tenant_claim is None or issuer.development:
        return None if issuer.tenants is None else "its tenants are set without a tenant_claim; remove one of them"
    if not issuer.tenants:
        return (
            "it has a tenant_claim, so it could speak for every tenant; set tenants to those it may name, such as "
            'tenants = ["acme", "beta-*"], or ["*"] for all'
        )
    pattern = next((each for each in issuer.tenants if not _TENANT_PATTERN.fullmatch(each)), None)
    if pattern is not None:
        return f"its tenants list {pattern!r}, which is no name of a tenant; use lower-case letters, digits, -, _ and *"
    return None


def _find_subject_error(issuer: IssuerSettings, settings: IdentitySettings) -> str | None:
    if not all(_ISSUER_NAME.fullmatch(each) for each in (issuer.issuer, get_subject_issuer(issuer))):
        return "its name, or same_subjects_as, has spaces, control characters or more than 255 characters; correct it"
    other = next((each for each in settings.issuers if each.issuer == issuer.same_subjects_as), None)
    if other is not None and other.same_subjects_as is not None:
        return "its same_subjects_as names an issuer that has same_subjects_as itself; name that one's"
    return None


def _find_operator_error(client: OperatorClientSettings, settings: IdentitySettings) -> str | None:
    if [each.client_id for each in settings.operators].count(client.client_id) > 1:
        return "it is listed twice; keep one entry"
    if settings.public_url is None:
        return "its tokens are issued by this gateway, which has no name; set identity.public_url"
    if (client.jwks_url is None) == (client.jwks_file is None):
        return "set exactly one of jwks_file and jwks_url"
    tenant = next((each for each in client.tenants if not is_tenant_name(each)), None)
    if tenant is not None:
        return f"its tenants list {tenant!r}, which is no name of a tenant; name each tenant"
    return None


def _find_console_error(issuer: IssuerSettings) -> str | None:
    if not issuer.console_audience:
        return "its console_audience is empty; remove it, or set it to the aud of the console's tokens"
    if not issuer.human or issuer.development or is_did(issuer.issuer):
        return "it has a console_audience, but is not an issuer for people; set human, or remove console_audience"
    return None


def _can_find_keys(issuer: IssuerSettings) -> bool:
    """Tell whether an issuer's keys can be found by its name: by OpenID discovery or as a DID."""
    if not has_did_keys(issuer):
        return is_discoverable(issuer.issuer)
    try:
        check_did(issuer.issuer)
    except InvalidDid:
        return False
    return True
