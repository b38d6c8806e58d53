"""What a verified token says, as a `Caller`. Pure: `tokens.py` has checked the signature before.

Whatever is present must be understood: a claim that limits authority and cannot be read refuses the token
instead of limiting nothing.
"""

import re
from dataclasses import replace
from typing import Any, get_args
from urllib.parse import urlsplit
from uuid import UUID

from deputize.core.call import MAX_SESSION_LENGTH
from deputize.core.caller import Caller, Capability, Trust, standing_of
from deputize.core.contract import Effects, inward
from deputize.core.errors import TokenAudience, TokenExpired, TokenIssuer, TokenMalformed
from deputize.core.settings import Issuer

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
# Beyond this a date is no date, and arithmetic on it is no longer exact.
_LAST_SECOND = 2**53
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# What only identity tokens, logout tokens and other signed messages carry: none of them is meant for an API.
_OF_OTHER_TOKENS = ("at_hash", "c_hash", "s_hash", "events")
# What stands only in tokens that were lent, or are made to be.
_OF_WHAT_IS_HANDED_ON = ("act", "may_act", "grants", "origin", "tools", "ceiling", "task")
# Who an actor is; anything else inside `act` would be authority in a place where nobody may look for it.
_OF_AN_ACTOR = frozenset({"sub", "iss", "client_id", "act"})

Claims = dict[str, Any]


def is_tenant(value: object) -> bool:
    return isinstance(value, str) and _TENANT.fullmatch(value) is not None


def is_text(value: str, limit: int) -> bool:
    """Whether a name somebody chose could stand in a token."""
    return 0 < len(value) <= limit and _CONTROL.search(value) is None


def caller_of(
    claims: Claims, issuer: Issuer, *, now: float, leeway: float, fallback_id: str, for_apis: bool = False
) -> Caller:
    """The caller behind the claims, or the exact reason why there is none.

    `for_apis` says that the token's header marks it as an access token.
    """
    require_access_token(claims, for_apis=for_apis)
    meant_for = require_audience(claims.get("aud"), _ours(issuer), issuer.issuer)
    expires_at, issued_at = lifetime_of(claims, now, leeway)
    token_id = _optional_text(claims, "jti", MAX_TOKEN_ID_LENGTH)
    agents = _agents(claims)
    human = issuer.human and not agents and not _is_client(claims)
    caller = Caller(
        tenant=_tenant(claims, issuer),
        user=_text(claims.get(issuer.subject_claim), issuer.subject_claim, MAX_SUBJECT_LENGTH),
        agents=agents,
        scopes=_scopes(claims),
        capabilities=_capabilities(claims),
        session=_optional_text(claims, "sid", MAX_SESSION_LENGTH),
        token_id=token_id or fallback_id,
        issuer=issuer.issuer,
        expires_at=expires_at,
        issued_at=issued_at,
        groups=_groups(claims, issuer.groups_claim),
        trust=issuer.trust,
        human=human,
        auth_time=_auth_time(claims, now, leeway),
        methods=_methods(claims),
        console=human and issuer.console_audience in meant_for and _is_own(claims, issuer),
        only_decides=issuer.audience not in meant_for,
        grants=_grants(claims),
        task=_optional_text(claims, "task", MAX_TASK_LENGTH),
        ceiling=_ceiling(claims),
    )
    if caller.only_decides and not caller.console:
        raise TokenAudience(
            "the token is for deciding approvals, and is not one of a person who signed in for that",
            advice="Sign in yourself: no token that was lent, exchanged or limited decides, and no program's does.",
        )
    return replace(caller, standing=standing_of(caller))


def _ours(issuer: Issuer) -> tuple[str, ...]:
    return (issuer.audience,) if issuer.console_audience is None else (issuer.audience, issuer.console_audience)


def _is_own(claims: Claims, issuer: Issuer) -> bool:
    """Whether somebody got the token for themselves. One that says what it is limited to, or who may act with it, was
    made to be handed on; keys that lie in a folder or that anybody can make are nobody's sign-in.
    """
    if issuer.development or issuer.issuer.startswith("did:"):
        return False
    return not any(name in claims for name in _OF_WHAT_IS_HANDED_ON)


def _methods(claims: Claims) -> frozenset[str]:
    """How somebody signed in (RFC 8176), and how well (`acr`). What cannot be read was not shown, and opens nothing."""
    listed = claims.get("amr")
    named = [*(listed if isinstance(listed, list) else [listed])[:_MAX_METHODS], claims.get("acr")]
    return frozenset(each for each in named if isinstance(each, str) and is_text(each, _MAX_METHOD_LENGTH))


def delegate_of(claims: Claims, issuer: Issuer, *, now: float, leeway: float) -> Caller:
    """The caller behind a token this gateway made. It never made one without a delegation, and it wrote into each where
    the authority came from: trust and issuer are the first token's, however often it was exchanged.
    """
    caller = caller_of(claims, issuer, now=now, leeway=leeway, fallback_id="", for_apis=True)
    origin, first = claims.get("origin"), _optional_text(claims, "origin_jti", MAX_TOKEN_ID_LENGTH)
    trust: Trust | None = next((each for each in get_args(Trust) if each == claims.get("trust")), None)
    delegated = 0 < len(caller.grants) <= len(caller.agents)
    if not delegated or not caller.token_id or not isinstance(origin, str) or first is None or trust is None:
        raise TokenMalformed("the token names this gateway as its issuer and no delegation it comes from")
    caller = replace(caller, issuer=origin, trust=trust, first_token=first)
    return replace(caller, standing=standing_of(caller))


def still_vouched_for(caller: Caller, origin: Issuer | None) -> Caller:
    """A delegation stands on the issuer it began with, as that is trusted now and not as it was then."""
    if origin is None or origin.tenant not in (None, caller.tenant):
        raise TokenIssuer("the token was lent from one whose issuer this gateway does not trust any more")
    levels = get_args(Trust)
    if levels.index(origin.trust) >= levels.index(caller.trust):
        return caller
    caller = replace(caller, trust=origin.trust)
    return replace(caller, standing=standing_of(caller))


def require_access_token(claims: Claims, *, for_apis: bool) -> None:
    """RFC 8725 asks not to take one kind of token for another."""
    marks = _OF_OTHER_TOKENS if for_apis else (*_OF_OTHER_TOKENS, "nonce")
    found = next((name for name in marks if name in claims), None)
    if found is not None:
        raise TokenMalformed(
            f"this is no access token: the claim {found} is one of tokens that are meant for somebody else",
            advice="Send the access token, not the ID token of the same sign-in.",
        )
    if "cnf" in claims:
        raise TokenMalformed(
            "the token is bound to a key of its holder, and this gateway has no way to see that key used",
            advice="Get a bearer token: one that is not bound by DPoP or mutual TLS.",
        )


def require_audience(audience: object, ours: tuple[str, ...], issuer: str) -> tuple[str, ...]:
    """For us alone. Whoever else a token is for could use it here; only its issuer could have made it anyway. Which of
    our names it is for comes back.
    """
    named = audience if isinstance(audience, list) else [audience]
    meant_for = tuple(each for each in ours if each in named)
    if not meant_for:
        raise TokenAudience("the token's audience is not this gateway")
    if not all(each in ours or _is_part_of(each, issuer) for each in named):
        raise TokenAudience(
            "the token is meant for others beside this gateway, who could use it here",
            advice="Get a token whose only audience is this gateway (RFC 8707: send it as the resource).",
        )
    return meant_for


def _is_part_of(address: object, issuer: str) -> bool:
    """An issuer's own endpoints, which some add to every audience."""
    if not isinstance(address, str) or not issuer.startswith("https://"):
        return False
    try:
        place, own = urlsplit(address), urlsplit(issuer)
    except ValueError:
        return False
    return (place.scheme, place.netloc) == (own.scheme, own.netloc)


def lifetime_of(claims: Claims, now: float, leeway: float) -> tuple[int, int]:
    expires_at = _seconds(claims, "exp")
    if expires_at is None:
        raise TokenMalformed("the token never expires: the claim exp is missing")
    if expires_at + leeway <= now:
        raise TokenExpired("the token has expired")
    issued_at = _seconds(claims, "iat")
    for start in (issued_at, _seconds(claims, "nbf")):
        if start is not None and start - leeway > now:
            raise TokenMalformed(
                "the token is not valid yet",
                advice="Use the token later, or set right the clock of the issuer or of this gateway.",
            )
    return int(expires_at), int(issued_at or 0)


def _seconds(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LAST_SECOND:
        raise TokenMalformed(f"the claim {name} is not a time in seconds")
    return value


def _auth_time(claims: Claims, now: float, leeway: float) -> int:
    signed_in = _seconds(claims, "auth_time")
    if signed_in is not None and signed_in - leeway > now:
        raise TokenMalformed("the claim auth_time lies in the future")
    return int(signed_in or 0)


def _tenant(claims: Claims, issuer: Issuer) -> str:
    if issuer.tenant_claim is None:
        return issuer.tenant or ""
    tenant = claims.get(issuer.tenant_claim)
    if not isinstance(tenant, str) or not is_tenant(tenant):
        raise TokenMalformed(f"the claim {issuer.tenant_claim} does not name a tenant")
    return tenant


def _text(value: object, name: str, limit: int) -> str:
    if not isinstance(value, str) or not value:
        raise TokenMalformed(f"the claim {name} is missing or is not a text")
    if len(value) > limit:
        raise TokenMalformed(f"the claim {name} is longer than {limit} characters")
    if _CONTROL.search(value):
        raise TokenMalformed(f"the claim {name} contains control characters")
    return value


def _optional_text(claims: Claims, name: str, limit: int) -> str | None:
    return _text(claims[name], name, limit) if claims.get(name) is not None else None


def _agents(claims: Claims) -> tuple[str, ...]:
    """The actors of RFC 8693, nearest first. A client id is not an agent: it says who asked for the token."""
    agents: list[str] = []
    holder: object = claims
    while isinstance(holder, dict) and "act" in holder:
        holder = holder["act"]
        if not isinstance(holder, dict):
            raise TokenMalformed("the claim act is not an actor with a sub")
        if not _OF_AN_ACTOR.issuperset(holder):
            raise TokenMalformed("the claim act says more than who acts")
        if len(agents) == MAX_AGENTS:
            raise TokenMalformed(f"the claim act names more than {MAX_AGENTS} actors")
        agents.append(_text(holder.get("sub"), "act.sub", MAX_SUBJECT_LENGTH))
    return tuple(agents)


def _is_client(claims: Claims) -> bool:
    """Whether a program got the token for itself: its subject is the client, or its issuer says so in its own words."""
    if claims.get("idtyp") == "app" or str(claims.get("gty", "")).replace("_", "-") == "client-credentials":
        return True
    return claims.get("sub") in (claims.get("client_id"), claims.get("azp"))


def _scopes(claims: Claims) -> frozenset[str]:
    scopes: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if value is None:
            continue
        words = value.split(" ") if isinstance(value, str) else value
        if not isinstance(words, list):
            raise TokenMalformed(f"the claim {name} is neither a text nor a list")
        if any(isinstance(word, str) and " " in word for word in words):
            # Written as text again, in a token made from this one, it would be two.
            raise TokenMalformed(f"the claim {name} lists a scope with a space in it")
        scopes.update(_text(word, name, _MAX_SCOPE_LENGTH) for word in words if word != "")
    return frozenset(scopes)


def _capabilities(claims: Claims) -> tuple[Capability, ...] | None:
    if "tools" not in claims:
        return None
    listed = claims["tools"]
    if not isinstance(listed, list) or len(listed) > MAX_CAPABILITIES:
        raise TokenMalformed(f"the claim tools is not a list of at most {MAX_CAPABILITIES} tools")
    return tuple(_capability(item) for item in listed)


def _capability(item: object) -> Capability:
    if not isinstance(item, dict):
        raise TokenMalformed("the claim tools holds something else than tools with their versions")
    tool = _text(item.get("tool_id", item.get("tool")), "tools.tool_id", _MAX_NAME_LENGTH)
    versions = item.get("version_range", item.get("versions", "*"))
    return Capability(tool=inward(tool), versions=_text(versions, "tools.version_range", _MAX_RANGE_LENGTH))


def _groups(claims: Claims, name: str) -> frozenset[str]:
    elsewhere = claims.get("_claim_names")
    if isinstance(elsewhere, dict) and name in elsewhere:
        # A rule that forbids something to a group must not be escaped by belonging to many.
        raise TokenMalformed(
            f"the token leaves out {name}, because there are too many of them",
            advice="Have the issuer put only the groups this gateway needs into its tokens.",
        )
    value = claims.get(name)
    if value is None:
        return frozenset()
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > MAX_GROUPS:
        raise TokenMalformed(f"the claim {name} is not a list of at most {MAX_GROUPS} groups")
    return frozenset(_text(each, name, _MAX_GROUP_LENGTH) for each in listed)


def _grants(claims: Claims) -> tuple[str, ...]:
    if "grants" not in claims:
        return ()
    listed = claims["grants"]
    if not isinstance(listed, list) or len(listed) > MAX_AGENTS:
        raise TokenMalformed(f"the claim grants is not a list of at most {MAX_AGENTS} delegations")
    try:
        return tuple(str(UUID(_text(each, "grants", 36))) for each in listed)
    except ValueError:
        raise TokenMalformed("the claim grants holds something else than ids of delegations") from None


def _ceiling(claims: Claims) -> Effects | None:
    if "ceiling" not in claims:
        return None
    try:
        return Effects(claims["ceiling"])
    except ValueError:
        raise TokenMalformed("the claim ceiling is none of read, write and destructive") from None
