"""A gateway that sends upstream what it was shown itself, instead of a credential made for the call."""

from contextvars import ContextVar
from dataclasses import replace

from deputize.core.caller import Caller
from deputize.core.contract.tools import Secret
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.lifecycle.phases import Authorized
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime, get_verifier, replace_runtime, replace_verifier
from proofs.kit.gateway_variant import serve_variant

_inbound: ContextVar[bytes] = ContextVar("inbound")


class TokenKeepingVerifier(TokenVerifier):
    """The real one, with the token put where the tools' credentials come from."""

    def __init__(self, real: TokenVerifier) -> None:
        vars(self).update(vars(real))

    def get_cached_caller(self, token: bytes, *, allow_console_only: bool = False) -> Caller | None:
        _inbound.set(token)
        return super().get_cached_caller(token, allow_console_only=allow_console_only)


async def forward_token(authorized: Authorized, call_id: str, seconds: float, scopes: tuple[str, ...]) -> Secret:
    return Secret(_inbound.get().decode(), name="forwarded")


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    forwarding = replace_runtime(gateway, credentials=replace(runtime.credentials, mint=forward_token))
    return replace_verifier(forwarding, TokenKeepingVerifier(get_verifier(gateway)))


if __name__ == "__main__":
    serve_variant(change)
