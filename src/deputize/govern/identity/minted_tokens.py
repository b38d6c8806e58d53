"""Mint upstream credentials: a token for one call, in the name of the user and all agents in the chain.

Minted for the contract's audience and only for the duration of the call. The caller's own token never leaves the
gateway. Pure: the caller passes in the key.
"""

import math
import re
from collections.abc import Sequence

from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract
from deputize.core.errors import CredentialMissing
from deputize.govern.identity.signing_keys import SigningKey
from deputize.govern.identity.token_exchange import build_act_claim

_SCOPE_SEPARATORS = re.compile(r"[:./]")
_READ_WORDS = frozenset({"read", "readonly", "read-only", "read_only"})


def mint_call_token(
    key: SigningKey,
    caller: Caller,
    contract: Contract,
    *,
    call_id: str,
    seconds: float,
    now: float,
    scopes: Sequence[str] | None = None,
) -> str:
    """Mint a token for one call. It expires after `seconds` or the contract's timeout, whichever is shorter.

    `scopes` narrows the contract's scopes; None means all of them.
    """
    audience = _require_upstream_audience(key, caller, contract.auth.audience, contract.full_name)
    expires_at = math.ceil(now + min(seconds, contract.timeout.effective_seconds))
    claims = {
        "aud": audience,
        "sub": caller.user,
        "scope": " ".join(contract.auth.scopes if scopes is None else scopes),
        "jti": call_id,
        "iat": int(now),
        "exp": expires_at,
    }
    return key.sign(claims | ({"act": build_act_claim(caller.agents)} if caller.agents else {}))


def mint_probe_token(
    key: SigningKey, caller: Caller, audience: str | None, *, id: str, seconds: float, now: float
) -> str:
    """Mint a token for a probe of a server, without a call and without scopes."""
    aud = _require_upstream_audience(key, caller, audience, "the server")
    claims = {"aud": aud, "sub": caller.user, "scope": "", "jti": id, "iat": int(now), "exp": math.ceil(now + seconds)}
    return key.sign(claims)


def _require_upstream_audience(key: SigningKey, caller: Caller, audience: str | None, owner: str) -> str:
    if caller.tenant != key.tenant:
        raise CredentialMissing("the signing key belongs to another tenant")
    if audience is None or audience.rstrip("/") == key.audience:
        # With a token for this gateway, the tool could make calls as its caller.
        raise CredentialMissing(
            f"{owner} has no auth.audience, or names this gateway itself as its audience",
            details={"audience": audience},
            advice="Ask the tool's author to set auth.audience to the service that the tool calls.",
        )
    return audience


def select_read_scopes(contract: Contract) -> tuple[str, ...]:
    """Select a tool's read-only scopes: those with a part that means read, as in `crm:read`, not `crm:read-write`."""
    return tuple(scope for scope in contract.auth.scopes if _READ_WORDS & set(_SCOPE_SEPARATORS.split(scope.lower())))
