"""Whoever started the process, as the author of what the settings say. Above: `boot.py` and `servers/`."""

from deputize.core.caller import ADMIN_SCOPE, PROCESS, Caller


def operator(tenant: str) -> Caller:
    """Recorded like any other administrator."""
    return Caller(
        tenant=tenant,
        user="operator",
        scopes=frozenset({ADMIN_SCOPE}),
        issuer=PROCESS,
        token_id="boot",
    )
