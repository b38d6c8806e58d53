"""Open the credential for a probe: the tenant's secret or a token of the gateway, closed after the probe.

Calls have their own credentials (`lifecycle/credentials/broker.py`). A probe belongs to no call: where calls use tokens
minted for their callers, it uses one minted for the operator, without any scope; where they use linked accounts, that
of the person who linked last.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deputize.core.caller import Caller, operator_caller
from deputize.core.contract.tools import Secret
from deputize.core.errors import AuthorityRevoked, CredentialMissing
from deputize.core.settings import McpServerSettings
from deputize.govern.identity.minted_tokens import mint_probe_token
from deputize.lifecycle.runtime import Runtime


@asynccontextmanager
async def open_probe_credential(
    runtime: Runtime, tenant: str, server: McpServerSettings
) -> AsyncIterator[Secret | None]:
    if server.credential in ("link", "client"):
        revocations = (await runtime.authority.load_tenant(tenant)).revocations

        def can_act(user: str) -> bool:
            """Tell whether a user is not revoked; a revoked user's account is not used for probes either."""
            try:
                revocations.check(Caller(tenant=tenant, user=user))
            except AuthorityRevoked:
                return False
            return True

        async with runtime.upstream_tokens.open_probe_token(tenant, server, can_act) as token:
            yield token
        return
    secret = await _fetch_credential(runtime, tenant, server)
    try:
        yield secret
    finally:
        if secret is not None:
            secret.close()


async def _fetch_credential(runtime: Runtime, tenant: str, server: McpServerSettings) -> Secret | None:
    if server.credential == "none":
        return None
    if server.credential == "vault":
        assert server.secret is not None
        return await runtime.credentials.vault.fetch(tenant, server.secret, seconds=server.start_seconds)
    if runtime.signing_keys is None:
        raise CredentialMissing(
            "this gateway mints no tokens, but the server's credential is a minted token",
            advice="Ask the operator of this gateway to set identity.public_url.",
        )
    key = runtime.signing_keys.get_ready_key(tenant) or await runtime.signing_keys.load_current_key(tenant)
    now = runtime.clock.epoch_ms() / 1000
    token = mint_probe_token(
        key, operator_caller(tenant), server.audience, id=runtime.clock.new_id(), seconds=server.start_seconds, now=now
    )
    return Secret(token, name="delegated")
