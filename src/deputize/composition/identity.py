"""Build what recognizes callers: tokens of issuers, sign-in to the console, and tokens of operators."""

import contextlib
from collections.abc import Awaitable, Callable

from deputize.core.caller import Caller
from deputize.core.settings.urls import SIGN_IN_CALLBACK_PATH, get_base_url
from deputize.execute.egress import Egress
from deputize.govern.identity.client_assertions import OperatorClients
from deputize.govern.identity.oidc_login import OidcLogin, check_console_settings
from deputize.govern.identity.primary_issuers import PrimaryIssuers
from deputize.govern.identity.sessions import SessionSealer
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.lifecycle.runtime import Runtime
from deputize.operations.admin.operator_tokens import OperatorTokens
from deputize.operations.approvals.console_sessions import ConsoleAccess
from deputize.operations.approvals.terminal_decisions import CodeVerifier
from deputize.store.keys import KEY_BYTES

CompleteCaller = Callable[[Caller], Awaitable[Caller]]


def build_token_verifier(
    runtime: Runtime, egress: Egress, complete_caller: CompleteCaller, stack: contextlib.AsyncExitStack
) -> TokenVerifier:
    # Callers who exchange tokens can name a DID: it is resolved at public addresses only, not at the operator's hosts.
    public_egress = Egress()
    stack.push_async_callback(public_egress.aclose)
    signing_keys, identity = runtime.signing_keys, runtime.settings.identity
    return TokenVerifier(
        identity,
        runtime.clock,
        egress.get,
        enrich_caller=complete_caller,
        find_primary_issuer=PrimaryIssuers(runtime.store, identity.issuers).get,
        own_keys=signing_keys,
        fetch_outside=public_egress.get,
        get_recovered_at=lambda: runtime.lineage.recovered_at,
    )


def build_operator_tokens(runtime: Runtime, tokens: TokenVerifier, egress: Egress) -> OperatorTokens:
    signing_keys, identity = runtime.signing_keys, runtime.settings.identity
    clients = None if signing_keys is None else OperatorClients(identity, signing_keys, runtime.clock, egress.get)
    return OperatorTokens(runtime, tokens, signing_keys, clients)


def build_console_access(
    runtime: Runtime,
    tokens: TokenVerifier,
    egress: Egress,
    by_code: CodeVerifier | None,
    complete_caller: CompleteCaller,
    development: bool,
) -> ConsoleAccess:
    console_settings, identity = runtime.settings.console, runtime.settings.identity
    base = get_base_url(runtime.settings)
    check_console_settings(console_settings, identity, base)
    issuer = next((each for each in identity.issuers if each.issuer == console_settings.issuer), None)
    sign_in = None
    if issuer is not None and base is not None:
        fresh = runtime.settings.approvals.fresh_seconds
        sign_in = OidcLogin(
            console_settings,
            tokens,
            runtime.clock,
            egress.get,
            egress.post,
            fresh_seconds=fresh,
            redirect_uri=base + SIGN_IN_CALLBACK_PATH,
        )
    # Agents can read a development folder and could forge sessions with its key: there, the key is in memory only.
    root = runtime.clock.random_bytes(KEY_BYTES) if development else runtime.keys.derive_shared_key("console sessions")
    # Any change of the issuer's, the client's or the groups' settings ends every session.
    group_settings = console_settings.model_dump_json(include={"groups"}) if console_settings.groups else ""
    issued_for = f"{console_settings.client_id}\0{'' if issuer is None else issuer.model_dump_json()}{group_settings}"
    return ConsoleAccess(
        runtime, SessionSealer(root, runtime.clock, issued_for=issued_for), sign_in, by_code, complete_caller
    )
