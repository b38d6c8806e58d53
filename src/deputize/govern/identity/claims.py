"""Build a `Caller` from the claims of a token. Pure: `token_verifier.py` verifies the signature before.

Every claim that limits authority must be valid: one that cannot be parsed rejects the token instead of being ignored.
"""

import re
from dataclasses import replace
from typing import Any, get_args
from urllib.parse import urlsplit
from uuid import UUID

import orjson

from deputize.core.call import MAX_SESSION_LENGTH
from deputize.core.caller import Caller, Capability, Trust, compute_decision_cache_key
from deputize.core.contract.contract import Effects
from deputize.core.contract.names import to_full_name
from deputize.core.errors import TokenAudienceMismatch, TokenExpired, TokenIssuerUntrusted, TokenMalformed
from deputize.core.grant_constraints import InvalidConstraints, parse_constraints
from deputize.core.patterns import matches_glob
from deputize.core.settings import IssuerSettings, OperatorClientSettings

# The claim of this gateway's own tokens for operator clients.
OPERATOR_CLIENT_CLAIM = "operator_client"
MAX_SUBJECT_LENGTH = 512
MAX_TOKEN_ID_LENGTH = 255
MAX_AGENTS = 8
MAX_CAPABILITIES = 256
MAX_TASK_LENGTH = 200
MAX_GROUPS = 1000
_MAX_SCOPE_LENGTH = 120
_MAX_GROUP_LENGTH = 255
_MAX_NAME_LENGTH = 97
_MAX_RANGE_LENGTH = 64
_MAX_METHODS = 32
_MAX_METHOD_LENGTH = 255
# Beyond this, arithmetic on floats is no longer exact.
_LAST_SECOND = 2**53
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# Claims of ID tokens, logout tokens and other signed messages, none of which is an access token.
_NON_ACCESS_TOKEN_CLAIMS = ("at_hash", "c_hash", "s_hash", "events")
# Claims of delegated tokens, and of tokens that are made to be delegated.
_DELEGATION_CLAIMS = ("act", "may_act", "grants", "origin", "tools", "ceiling", "task", "constraints")
# Claims that identify an actor. Any other claim inside `act` could be authority that no check would see.
_ACTOR_CLAIMS = frozenset({"sub", "iss", "client_id", "act"})

Claims = dict[str, Any]


def is_tenant_name(value: object) -> bool:
    return isinstance(value, str) and _TENANT.fullmatch(value) is not None


def can_speak_for(issuer: IssuerSettings, tenant: str) -> bool:
    """Tell whether an issuer's tokens may name a tenant. The development issuer may name any."""
    if issuer.tenant_claim is None:
        return issuer.tenant == tenant
    return issuer.development or any(matches_glob(tenant, pattern) for pattern in issuer.tenants or ())


def is_text(value: str, limit: int) -> bool:
    """Tell whether a text has a valid length and no control characters, as claims require."""
    return 0 < len(value) <= limit and _CONTROL.search(value) is None


def build_caller(
    claims: Claims,
    issuer: IssuerSettings,
    *,
    now: float,
    leeway: float,
    fallback_id: str,
    is_access_token: bool = False,
) -> Caller:
    """Build the caller from the claims, or raise the exact reason why the token is not accepted."""
    require_access_token(claims, is_access_token=is_access_token)
    audiences = require_audience(claims.get("aud"), _list_audiences(issuer), issuer.issuer)
    expires_at, issued_at = parse_lifetime(claims, now, leeway)
    actors = _parse_actors(claims)
    agents = tuple(_require_text(actor.get("sub"), "act.sub", MAX_SUBJECT_LENGTH) for actor in actors)
    human = issuer.human and not agents and not _is_client(claims)
    caller = Caller(
        tenant=_parse_tenant(claims, issuer),
        user=_require_text(claims.get(issuer.subject_claim), issuer.subject_claim, MAX_SUBJECT_LENGTH),
        agents=agents,
        # An issuer speaks for its own subjects only, whichever issuer its `act` names.
        agent_issuers=(issuer.issuer,) * len(agents),
        scopes=_parse_scopes(claims),
        capabilities=_parse_capabilities(claims),
        session=_get_optional_text(claims, "sid", MAX_SESSION_LENGTH),
        token_id=_get_optional_text(claims, "jti", MAX_TOKEN_ID_LENGTH) or fallback_id,
        issuer=issuer.issuer,
        expires_at=expires_at,
        issued_at=issued_at,
        groups=_parse_groups(claims, issuer.groups_claim),
        trust=issuer.trust,
        human=human,
        auth_time=_parse_auth_time(claims, now, leeway),
        methods=_parse_methods(claims),
        console=human and issuer.console_audience in audiences and _is_personal(claims, issuer),
        only_decides=issuer.audience not in audiences,
        operator=issuer.operator and _is_personal(claims, issuer),
        grants=_parse_grants(claims),
        task=_get_optional_text(claims, "task", MAX_TASK_LENGTH),
        ceiling=_parse_ceiling(claims),
        constraints=_parse_constraints(claims),
    )
    if caller.only_decides and not caller.console:
        raise TokenAudienceMismatch(
            "the token's audience is the console, but it does not belong to a person who signed in there",
            advice="Sign in to the console yourself. Programs and delegated or limited tokens cannot decide.",
        )
    return replace(caller, decision_cache_key=compute_decision_cache_key(caller))


def _list_audiences(issuer: IssuerSettings) -> tuple[str, ...]:
    return (issuer.audience,) if issuer.console_audience is None else (issuer.audience, issuer.console_audience)


def _is_personal(claims: Claims, issuer: IssuerSettings) -> bool:
    """Tell whether a person got the token for themselves by signing in.

    A token with limits or with permitted actors is made for delegation. A program gets one without anyone. The
    development issuer and DIDs need no sign-in.
    """
    if _is_client(claims) or issuer.development or issuer.issuer.startswith("did:"):
        return False
    return not any(name in claims for name in _DELEGATION_CLAIMS)


def _parse_methods(claims: Claims) -> frozenset[str]:
    """Parse the authentication methods (`amr`, RFC 8176) and class (`acr`). Invalid values are ignored: they grant
    nothing.
    """
    amr = claims.get("amr")
    methods = [*(amr if isinstance(amr, list) else [amr])[:_MAX_METHODS], claims.get("acr")]
    return frozenset(each for each in methods if isinstance(each, str) and is_text(each, _MAX_METHOD_LENGTH))


def build_delegate(claims: Claims, issuer: IssuerSettings, *, now: float, leeway: float) -> Caller:
    """Build the caller from a token that this gateway issued.

    Each such token has a delegation and names its origin: trust and issuer are those of the first token in the chain.
    """
    caller = build_caller(claims, issuer, now=now, leeway=leeway, fallback_id="", is_access_token=True)
    origin, first_token = claims.get("origin"), _get_optional_text(claims, "origin_jti", MAX_TOKEN_ID_LENGTH)
    trust: Trust | None = next((each for each in get_args(Trust) if each == claims.get("trust")), None)
    has_delegation = 0 < len(caller.grants) <= len(caller.agents)
    if not has_delegation or not caller.token_id or not isinstance(origin, str) or first_token is None or trust is None:
        raise TokenMalformed("the token names this gateway as its issuer, but contains no valid delegation")
    # In this gateway's own tokens, a proven actor has the issuer that proved it; the others are labels.
    agent_issuers = tuple(_get_optional_text(actor, "iss", MAX_SUBJECT_LENGTH) or "" for actor in _parse_actors(claims))
    caller = replace(caller, issuer=origin, agent_issuers=agent_issuers, trust=trust, first_token=first_token)
    return replace(caller, decision_cache_key=compute_decision_cache_key(caller))


def build_operator_client(
    claims: Claims, issuer: IssuerSettings, client: OperatorClientSettings | None, *, now: float, leeway: float
) -> Caller:
    """Build the caller from a token that this gateway issued to an operator client of the settings, `client`.

    It has what the settings allow now: a client that was removed, or lost a tenant or scope, loses it at once.
    """
    caller = build_caller(claims, issuer, now=now, leeway=leeway, fallback_id="", is_access_token=True)
    limits = (caller.capabilities, caller.ceiling, caller.task)
    if caller.agents or caller.grants or any(each is not None for each in limits) or not caller.token_id:
        raise TokenMalformed("the token of an operator client cannot be delegated or limited")
    if client is None or client.client_id != caller.user or caller.tenant not in client.tenants:
        raise TokenIssuerUntrusted(
            "the token's operator client is not registered for this tenant, or no longer",
            advice="Ask the operator of this gateway to list it under [[identity.operators]].",
        )
    caller = replace(caller, operator=True, scopes=caller.scopes & frozenset(client.scopes), auth_time=caller.issued_at)
    return replace(caller, decision_cache_key=compute_decision_cache_key(caller))


def apply_origin_trust(caller: Caller, origin: IssuerSettings | None) -> Caller:
    """Limit a delegated caller to the current trust of the issuer its delegation started from."""
    if origin is None or not can_speak_for(origin, caller.tenant):
        raise TokenIssuerUntrusted("the token was delegated from a token whose issuer this gateway no longer trusts")
    levels = get_args(Trust)
    if levels.index(origin.trust) >= levels.index(caller.trust):
        return caller
    caller = replace(caller, trust=origin.trust)
    return replace(caller, decision_cache_key=compute_decision_cache_key(caller))


def require_access_token(claims: Claims, *, is_access_token: bool) -> None:
    """Reject other kinds of tokens (RFC 8725), and tokens bound to a key."""
    forbidden_claims = _NON_ACCESS_TOKEN_CLAIMS if is_access_token else (*_NON_ACCESS_TOKEN_CLAIMS, "nonce")
    claim = next((name for name in forbidden_claims if name in claims), None)
    if claim is not None:
        raise TokenMalformed(
            f"this is not an access token: it contains the claim {claim}",
            advice="Send the access token, not the ID token of the same sign-in.",
        )
    if "cnf" in claims:
        raise TokenMalformed(
            "the token is bound to a key of its holder (claim cnf), which this gateway cannot verify",
            advice="Get a bearer token that is not bound by DPoP or mutual TLS.",
        )


def require_audience(audience: object, accepted_audiences: tuple[str, ...], issuer: str) -> tuple[str, ...]:
    """Require that the token is for this gateway alone, and return which of its audiences matched.

    Another recipient could use the token here. The issuer itself is allowed, because it can create tokens anyway.
    """
    audiences = audience if isinstance(audience, list) else [audience]
    matches = tuple(each for each in accepted_audiences if each in audiences)
    if not matches:
        raise TokenAudienceMismatch("the token's audience is not this gateway")
    if not all(each in accepted_audiences or _is_issuer_url(each, issuer) for each in audiences):
        raise TokenAudienceMismatch(
            "the token has other audiences besides this gateway, which could use it here",
            advice="Get a token whose only audience is this gateway (RFC 8707: request it as the resource).",
        )
    return matches


def _is_issuer_url(address: object, issuer: str) -> bool:
    """Tell whether an audience is a URL of the issuer, which some issuers add to every token."""
    if not isinstance(address, str) or not issuer.startswith("https://"):
        return False
    try:
        url, issuer_url = urlsplit(address), urlsplit(issuer)
    except ValueError:
        return False
    return (url.scheme, url.netloc) == (issuer_url.scheme, issuer_url.netloc)


def parse_lifetime(claims: Claims, now: float, leeway: float) -> tuple[int, int]:
    """Parse and check `exp`, `iat` and `nbf`; return when the token expires and when it was issued."""
    expires_at = _parse_seconds(claims, "exp")
    if expires_at is None:
        raise TokenMalformed("the token has no expiry: the claim exp is missing")
    if expires_at + leeway <= now:
        raise TokenExpired("the token has expired")
    issued_at = _parse_seconds(claims, "iat")
    for start in (issued_at, _parse_seconds(claims, "nbf")):
        if start is not None and start - leeway > now:
            raise TokenMalformed(
                "the token is not valid yet",
                advice="Use the token later, or correct the clock of the issuer or of this gateway.",
            )
    return int(expires_at), int(issued_at or 0)


def _parse_seconds(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LAST_SECOND:
        raise TokenMalformed(f"the claim {name} is not a time in seconds")
    return value


def _parse_auth_time(claims: Claims, now: float, leeway: float) -> int:
    auth_time = _parse_seconds(claims, "auth_time")
    if auth_time is not None and auth_time - leeway > now:
        raise TokenMalformed("the claim auth_time is in the future")
    return int(auth_time or 0)


def _parse_tenant(claims: Claims, issuer: IssuerSettings) -> str:
    if issuer.tenant_claim is None:
        return issuer.tenant or ""
    tenant = claims.get(issuer.tenant_claim)
    if not isinstance(tenant, str) or not is_tenant_name(tenant):
        raise TokenMalformed(f"the claim {issuer.tenant_claim} is not a valid tenant name")
    if not can_speak_for(issuer, tenant):
        raise TokenIssuerUntrusted(
            f"the token's issuer may not speak for the tenant that its claim {issuer.tenant_claim} names",
            advice="Get a token for a tenant that the issuer may name. The operator lists them as its `tenants`.",
        )
    return tenant


def _require_text(value: object, name: str, limit: int) -> str:
    if not isinstance(value, str) or not value:
        raise TokenMalformed(f"the claim {name} is missing or is not a string")
    if len(value) > limit:
        raise TokenMalformed(f"the claim {name} is longer than {limit} characters")
    if _CONTROL.search(value):
        raise TokenMalformed(f"the claim {name} contains control characters")
    return value


def _get_optional_text(claims: Claims, name: str, limit: int) -> str | None:
    return _require_text(claims[name], name, limit) if claims.get(name) is not None else None


def _parse_actors(claims: Claims) -> list[Claims]:
    """Parse the actors (`act`, RFC 8693), nearest first. A client id is no agent: it only requested the token."""
    actors: list[Claims] = []
    holder: object = claims
    while isinstance(holder, dict) and "act" in holder:
        holder = holder["act"]
        if not isinstance(holder, dict):
            raise TokenMalformed("the claim act is not an actor with a sub")
        if not _ACTOR_CLAIMS.issuperset(holder):
            raise TokenMalformed("the claim act contains more than the actor's identity")
        if len(actors) == MAX_AGENTS:
            raise TokenMalformed(f"the claim act names more than {MAX_AGENTS} actors")
        actors.append(holder)
    return actors


def _is_client(claims: Claims) -> bool:
    """Tell whether a program got the token for itself: its subject is the client, or a vendor claim says so."""
    if claims.get("idtyp") == "app" or str(claims.get("gty", "")).replace("_", "-") == "client-credentials":
        return True
    return claims.get("sub") in (claims.get("client_id"), claims.get("azp"))


def _parse_scopes(claims: Claims) -> frozenset[str]:
    scopes: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if value is None:
            continue
        words = value.split(" ") if isinstance(value, str) else value
        if not isinstance(words, list):
            raise TokenMalformed(f"the claim {name} is neither a string nor a list")
        if any(isinstance(word, str) and " " in word for word in words):
            # In a token derived from this one, scopes are joined by spaces: it would become two scopes.
            raise TokenMalformed(f"the claim {name} contains a scope with a space")
        scopes.update(_require_text(word, name, _MAX_SCOPE_LENGTH) for word in words if word != "")
    return frozenset(scopes)


def _parse_capabilities(claims: Claims) -> tuple[Capability, ...] | None:
    if "tools" not in claims:
        return None
    items = claims["tools"]
    if not isinstance(items, list) or len(items) > MAX_CAPABILITIES:
        raise TokenMalformed(f"the claim tools is not a list of at most {MAX_CAPABILITIES} tools")
    return tuple(_parse_capability(item) for item in items)


def _parse_capability(item: object) -> Capability:
    if not isinstance(item, dict):
        raise TokenMalformed("the claim tools contains an entry that is not an object with a tool and its versions")
    tool = _require_text(item.get("tool_id", item.get("tool")), "tools.tool_id", _MAX_NAME_LENGTH)
    versions = item.get("version_range", item.get("versions", "*"))
    return Capability(
        tool=to_full_name(tool), versions=_require_text(versions, "tools.version_range", _MAX_RANGE_LENGTH)
    )


def _parse_groups(claims: Claims, name: str) -> frozenset[str]:
    claim_names = claims.get("_claim_names")
    if isinstance(claim_names, dict) and name in claim_names:
        # Otherwise a user in many groups would escape a rule that forbids something to one of them.
        raise TokenMalformed(
            f"the token does not contain the claim {name}, because the user is in too many groups",
            advice="Configure the issuer to include only the groups that this gateway needs.",
        )
    value = claims.get(name)
    if value is None:
        return frozenset()
    groups = [value] if isinstance(value, str) else value
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise TokenMalformed(f"the claim {name} is not a list of at most {MAX_GROUPS} groups")
    return frozenset(_require_text(each, name, _MAX_GROUP_LENGTH) for each in groups)


def _parse_constraints(claims: Claims) -> tuple[str, ...]:
    value = claims.get("constraints", [])
    if not isinstance(value, list) or len(value) > MAX_AGENTS:
        raise TokenMalformed(f"the claim constraints is not a list of at most {MAX_AGENTS} objects")
    try:
        return tuple(parse_constraints(orjson.dumps(each))[0] for each in value)
    except (InvalidConstraints, TypeError) as error:
        raise TokenMalformed(f"the claim constraints cannot be enforced: {error}") from error


def _parse_grants(claims: Claims) -> tuple[str, ...]:
    if "grants" not in claims:
        return ()
    grant_ids = claims["grants"]
    if not isinstance(grant_ids, list) or len(grant_ids) > MAX_AGENTS:
        raise TokenMalformed(f"the claim grants is not a list of at most {MAX_AGENTS} delegations")
    try:
        return tuple(str(UUID(_require_text(each, "grants", 36))) for each in grant_ids)
    except ValueError:
        raise TokenMalformed("the claim grants contains an invalid delegation id") from None


def _parse_ceiling(claims: Claims) -> Effects | None:
    if "ceiling" not in claims:
        return None
    try:
        return Effects(claims["ceiling"])
    except ValueError:
        raise TokenMalformed("the claim ceiling is not one of read, write and destructive") from None
