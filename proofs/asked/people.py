"""Who takes part: people who sign in to decide, and whoever asks, in person or through an agent.

Their tokens are as old as the gateways' clocks are apart, so that each gateway takes them. Above: `house`. Below: the
kit's issuer, and one of the proof's own that only people sign in at.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from proofs.kit.gateway import AUDIENCE, Issuer

PEOPLE, CONSOLE = "https://people.proof", "proof-console"
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
human = true
"""

ONCALL, LEADS = "oncall", "leads"
APPROVERS = ("bea", "ben", "bob", "bud")
GLAZIERS = ("gus", "gil")


def long_ago() -> Clock:
    return Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 - 1000 * AGO_SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class People:
    """Signs people in, and programs for those who ask."""

    programs: Issuer = field(
        default_factory=lambda: Issuer(key=Ed25519PrivateKey.generate(), clock=long_ago())
    )  # fmt: skip
    humans: Issuer = field(default_factory=lambda: Issuer(key=Ed25519PrivateKey.generate(), clock=long_ago()))

    def settings(self, keys: str) -> str:
        return SETTINGS.format(issuer=PEOPLE, audience=AUDIENCE, console=CONSOLE, keys=keys)

    def asks(self, user: str, agent: str | None = None, *, token_id: str | None = None) -> str:
        return self.programs.token(user, agent=agent, token_id=token_id, minutes=_MINUTES)

    def admin(self) -> str:
        return self.programs.token("root", scopes=("deputize:admin",), minutes=_MINUTES)

    def person(
        self,
        name: str,
        groups: Sequence[str] = (ONCALL,),
        *,
        stale: bool = False,
        audience: str = CONSOLE,
        tenant: str = "acme",
        scope: str = "",
        **more: Any,
    ) -> str:
        """Somebody who signed in, for deciding unless it is said otherwise."""
        issued = self.humans.clock.epoch_ms() // 1000
        claims = {
            "iss": PEOPLE, "aud": audience, "sub": name, "tenant": tenant, "groups": list(groups), "scope": scope,
            "iat": issued, "exp": issued + 60 * _MINUTES, "jti": self.humans.clock.new_id(),
            "auth_time": issued - (_STALE_SECONDS if stale else 0), **more,
        }  # fmt: skip
        return jwt.encode(claims, self.humans.key, algorithm="EdDSA", headers={"kid": "proof"})
