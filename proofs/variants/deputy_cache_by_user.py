"""A gateway that remembers verified tokens by their user: anyone who comes for the same one is taken for the first."""

import base64

import orjson

from deputize.core.caller import Caller
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_verifier, replace_verifier
from proofs.kit.gateway_variant import serve_variant


class UserCachedVerifier(TokenVerifier):
    """The real one, with a memory of its own in front."""

    def __init__(self, real: TokenVerifier) -> None:
        vars(self).update(vars(real))
        self._by_user: dict[str, Caller] = {}

    def get_cached_caller(self, token: bytes, *, allow_console_only: bool = False) -> Caller | None:
        return self._by_user.get(_read_user(token))

    async def verify_caller(self, token: bytes, *, allow_console_only: bool = False) -> Caller:
        return self._by_user.setdefault(
            _read_user(token), await super().verify_caller(token, allow_console_only=allow_console_only)
        )


def _read_user(token: bytes) -> str:
    part = token.split(b".")[1]
    return str(orjson.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))["sub"])


def change(gateway: Gateway) -> Gateway:
    return replace_verifier(gateway, UserCachedVerifier(get_verifier(gateway)))


if __name__ == "__main__":
    serve_variant(change)
