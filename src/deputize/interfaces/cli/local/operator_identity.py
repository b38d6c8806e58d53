"""Establish, without a gateway, which person confirms an act on the database."""

import time
from dataclasses import replace
from typing import Final

from deputize.acts.operator_proof import require_person
from deputize.core.caller import Caller, operator_caller
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.execute.egress import Egress
from deputize.govern.identity.jwks import list_issuer_hosts
from deputize.govern.identity.primary_issuers import PrimaryIssuers
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.store.pool import Store
from deputize.store.pseudonyms import Pseudonyms

_TERMINAL_RULE: Final = "operator-terminal"


async def identify_operator(
    settings: Settings, store: Store, token: str, *, is_development: bool
) -> tuple[Caller | None, str]:
    """Return the operator whose token this is, and the rule that accepts them; in development, who sits there."""
    if is_development:
        return None, _TERMINAL_RULE
    if not token:
        raise ConfigError("Who confirms it? Sign in as an operator and set DEPUTIZE_TOKEN or --token to the token.")
    identity, clock = settings.identity, Clock()
    egress = Egress(allow_hosts=list_issuer_hosts(identity.issuers))
    try:
        primary_issuers = PrimaryIssuers(store, identity.issuers)
        verifier = TokenVerifier(identity, clock, egress.get, find_primary_issuer=primary_issuers.get)
        caller = await verifier.verify_caller(token.encode())
    finally:
        await egress.aclose()
    return caller, require_person(identity, caller, now=int(time.time()))


async def complete_caller(store: Store, clock: Clock, tenant: str, person: Caller | None) -> Caller:
    """Name the person in the audit log of their own tenant, and the operator in those of the others."""
    caller = person if person is not None and person.tenant == tenant else operator_caller(tenant)
    subjects = caller.pseudonym_subjects
    return replace(caller, pseudonyms=await Pseudonyms(clock).get_or_create(store, tenant, subjects))
