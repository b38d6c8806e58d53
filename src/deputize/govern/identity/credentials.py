"""The credential a tool acts with upstream: a token for one call, in the name of the user and of every agent between.

Minted inside `execute`, for the contract's audience, never longer than the call. The caller's own token stays here.
Pure: the key is handed in.
"""

import math
import re
from collections.abc import Sequence

from deputize.core.caller import Caller
from deputize.core.contract import Contract
from deputize.core.errors import CredentialMissing
from deputize.govern.identity.exchange import nested
from deputize.govern.identity.signing import SigningKey

_PARTS = re.compile(r"[:./]")
_READS = frozenset({"read", "readonly", "read-only", "read_only"})


def mint(
    key: SigningKey,
    caller: Caller,
    contract: Contract,
    *,
    call_id: str,
    seconds: float,
    now: float,
    scopes: Sequence[str] | None = None,
) -> str:
    """Ends with the call: after `seconds` or the contract's own limit, whichever comes first, up to the next second.
    `scopes` are fewer than the contract's, or None for all of them.
    """
    audience = _elsewhere(key, caller, contract.auth.audience, contract.full_name)
    end = math.ceil(now + min(seconds, contract.timeout.effective_seconds))
    claims = {
        "aud": audience,
        "sub": caller.user,
        "scope": " ".join(contract.auth.scopes if scopes is None else scopes),
        "jti": call_id,
        "iat": int(now),
        "exp": end,
    }
    return key.sign(claims | ({"act": nested(caller.agents)} if caller.agents else {}))


def mint_to_look(key: SigningKey, caller: Caller, audience: str | None, *, id: str, seconds: float, now: float) -> str:
    """For asking a server what it offers: of no call, and with no scope."""
    aud = _elsewhere(key, caller, audience, "the server")
    claims = {"aud": aud, "sub": caller.user, "scope": "", "jti": id, "iat": int(now), "exp": math.ceil(now + seconds)}
    return key.sign(claims)


def _elsewhere(key: SigningKey, caller: Caller, audience: str | None, who: str) -> str:
    if caller.tenant != key.tenant:
        raise CredentialMissing("the key at hand is another tenant's")
    if audience is None or audience.rstrip("/") == key.audience:
        # A token for this gateway in a tool's hands would let the tool call on as its caller.
        raise CredentialMissing(
            f"{who} does not say for whom its token should be, or names this gateway itself",
            details={"audience": audience},
            advice="The tool's author must set auth.audience to the service it calls.",
        )
    return audience


def reading(contract: Contract) -> tuple[str, ...]:
    """Those of a tool's scopes of which one whole part says that they only read: `crm:read`, not `crm:read-write`."""
    return tuple(scope for scope in contract.auth.scopes if _READS & set(_PARTS.split(scope.lower())))
