"""A gateway that sends upstream what it was shown itself, instead of a credential made for the call."""

from contextvars import ContextVar
from dataclasses import replace

from deputize.core.caller import Caller
from deputize.core.definition import Secret
from deputize.govern.identity.tokens import TokenVerifier
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.phases import Authorized
from deputize.lifecycle.run import Lifecycle
from proofs.kit.variant import serve_changed

_inbound: ContextVar[bytes] = ContextVar("inbound")


class Keeping(TokenVerifier):
    """The real one, with the token put where the tools' credentials come from."""

    def __init__(self, real: TokenVerifier) -> None:
        vars(self).update(vars(real))

    def cached(self, token: bytes, *, deciding: bool = False) -> Caller | None:
        _inbound.set(token)
        return super().cached(token, deciding=deciding)


async def forward(authorized: Authorized, call_id: str, seconds: float, scopes: tuple[str, ...]) -> Secret:
    return Secret(_inbound.get().decode(), name="forwarded")


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    forwarding = replace(rooms, credentials=replace(rooms.credentials, mint=forward))
    return replace(gateway, tokens=Keeping(gateway.tokens), lifecycle=Lifecycle(forwarding))


if __name__ == "__main__":
    serve_changed(change)
