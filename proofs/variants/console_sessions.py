"""The gateway as it is, that also prints the cookie of an administrator's console session for each named tenant."""

import os

from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.core.clock import Clock
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant

SESSION_PREFIX = "session of "
TENANTS_VARIABLE = "PROOF_CONSOLE_TENANTS"
_SECONDS = 7200


def print_sessions(gateway: Gateway) -> Gateway:
    """Seal a session for each tenant, as a sign-in does."""
    now = Clock().epoch_ms() // 1000
    for tenant in os.environ[TENANTS_VARIABLE].split(","):
        caller = Caller(
            tenant=tenant, user="viewer", scopes=frozenset({ADMIN_SCOPE}), issuer="urn:proof", token_id="viewer",
            expires_at=now + _SECONDS, issued_at=now, auth_time=now, human=True, console=True, only_decides=True,
        )  # fmt: skip
        print(f"{SESSION_PREFIX}{tenant} {gateway.console_access._sessions.seal_session(caller)}", flush=True)
    return gateway


if __name__ == "__main__":
    serve_variant(print_sessions)
