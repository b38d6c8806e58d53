"""What a verified token says, as a `Caller`. Pure: `tokens.py` has checked the signature before.

Whatever is present must be understood: a claim that limits authority and cannot be read refuses the token
instead of limiting nothing.
"""

import re
from typing import Any

from deputize.core.call import MAX_SESSION_LENGTH
from deputize.core.caller import Caller, Capability
from deputize.core.contract import inward
from deputize.core.errors import TokenAudience, TokenExpired, TokenMalformed
from deputize.core.settings import Issuer

MAX_SUBJECT_LENGTH = 512
MAX_TOKEN_ID_LENGTH = 255
MAX_AGENTS = 8
MAX_CAPABILITIES = 256
_MAX_SCOPE_LENGTH = 120
_MAX_NAME_LENGTH = 97
_MAX_RANGE_LENGTH = 64
# Beyond this a date is no date, and arithmetic on it is no longer exact.
_LAST_SECOND = 2**53
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

Claims = dict[str, Any]


def is_tenant(value: object) -> bool:
    return isinstance(value, str) and _TENANT.fullmatch(value) is not None


def caller_of(claims: Claims, issuer: Issuer, *, now: float, leeway: float, fallback_id: str) -> Caller:
    """The caller behind the claims, or the exact reason why there is none."""
    _require_audience(claims.get("aud"), issuer.audience)
    expires_at, issued_at = _lifetime(claims, now, leeway)
    token_id = _optional_text(claims, "jti", MAX_TOKEN_ID_LENGTH)
    return Caller(
        tenant=_tenant(claims, issuer),
        user=_text(claims.get("sub"), "sub", MAX_SUBJECT_LENGTH),
        agents=_agents(claims),
        scopes=_scopes(claims),
        capabilities=_capabilities(claims),
        session=_optional_text(claims, "sid", MAX_SESSION_LENGTH),
        token_id=token_id or fallback_id,
        issuer=issuer.issuer,
        expires_at=expires_at,
        issued_at=issued_at,
    )


def _require_audience(audience: object, ours: str) -> None:
    if audience != ours and not (isinstance(audience, list) and ours in audience):
        raise TokenAudience("the token's audience is not this gateway")


def _lifetime(claims: Claims, now: float, leeway: float) -> tuple[int, int]:
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
        if len(agents) == MAX_AGENTS:
            raise TokenMalformed(f"the claim act names more than {MAX_AGENTS} actors")
        agents.append(_text(holder.get("sub"), "act.sub", MAX_SUBJECT_LENGTH))
    return tuple(agents)


def _scopes(claims: Claims) -> frozenset[str]:
    scopes: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        if value is None:
            continue
        words = value.split(" ") if isinstance(value, str) else value
        if not isinstance(words, list):
            raise TokenMalformed(f"the claim {name} is neither a text nor a list")
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
