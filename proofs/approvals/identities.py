"""Who takes part: people who sign in to decide, and anyone who asks, in person or through an agent.

Their tokens are as old as the gateways' clocks are apart, so that each gateway takes them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from proofs.kit.gateway import AUDIENCE, ISSUER, Issuer

PEOPLE_ISSUER, CONSOLE = "https://people.proof", "proof-console"
# Further than any gateway's clock is behind: what was issued then is no token of the future to anybody.
AGO_SECONDS = 50 * 60
# How long ago somebody may have signed in, by whichever clock says it is longest.
FRESH_SECONDS = 2 * 3600
_STALE_SECONDS = 6 * 3600
_MINUTES = 12 * 60
SETTINGS = """
[[identity.issuers]]
issuer = "{issuer}"
audience = "{audience}"
console_audience = "{console}"
jwks_file = "{keys}"
tenant_claim = "tenant"
tenants = ["*"]
human = true
same_subjects_as = "{people}"
"""

ONCALL, LEADS = "oncall", "leads"
APPROVERS = ("bea", "ben", "bob", "bud")
BREAK_GLASS_USERS = ("gus", "gil")


def create_old_clock() -> Clock:
    return Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 - 1000 * AGO_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Identities:
    """Signs people in, and programs for those who ask."""

    program_issuer: Issuer = field(
        default_factory=lambda: Issuer(key=Ed25519PrivateKey.generate(), clock=create_old_clock())
    )  # fmt: skip
    people_issuer: Issuer = field(
        default_factory=lambda: Issuer(key=Ed25519PrivateKey.generate(), clock=create_old_clock())
    )

    def render_settings(self, keys: str) -> str:
        return SETTINGS.format(issuer=PEOPLE_ISSUER, audience=AUDIENCE, console=CONSOLE, keys=keys, people=ISSUER)

    def issue_caller_token(self, user: str, agent: str | None = None, *, token_id: str | None = None) -> str:
        return self.program_issuer.issue_token(user, agent=agent, token_id=token_id, minutes=_MINUTES)

    def issue_admin_token(self, minutes: int) -> str:
        """Of someone who signed in a moment ago, by a clock that is off by this much."""
        clock = Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 + 60_000 * minutes)
        issuer = replace(self.program_issuer, clock=clock)
        return issuer.issue_token("root", scopes=("deputize:admin",), minutes=_MINUTES)

    def issue_person_token(
        self,
        name: str,
        groups: Sequence[str] = (ONCALL,),
        *,
        stale: bool = False,
        audience: str = CONSOLE,
        tenant: str = "acme",
        scope: str = "",
        **extra_claims: Any,
    ) -> str:
        """Someone who signed in, for deciding unless it is said otherwise."""
        issued_at = self.people_issuer.clock.epoch_ms() // 1000
        claims = {
            "iss": PEOPLE_ISSUER,
            "aud": audience,
            "sub": name,
            "tenant": tenant,
            "groups": list(groups),
            "scope": scope,
            "iat": issued_at,
            "exp": issued_at + 60 * _MINUTES,
            "jti": self.people_issuer.clock.new_id(),
            "auth_time": issued_at - (_STALE_SECONDS if stale else 0),
            **extra_claims,
        }
        return jwt.encode(claims, self.people_issuer.key, algorithm="EdDSA", headers={"kid": "proof"})
