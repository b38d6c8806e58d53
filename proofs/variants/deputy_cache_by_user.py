"""A gateway that remembers verified tokens by their user: whoever comes for the same one is taken for the first."""

import base64
from dataclasses import replace

import orjson

from deputize.core.caller import Caller
from deputize.govern.identity.tokens import TokenVerifier
from deputize.lifecycle.gateway import Gateway
from proofs.kit.variant import serve_changed


class ByUser(TokenVerifier):
    """The real one, with a memory of its own in front."""

    def __init__(self, real: TokenVerifier) -> None:
        vars(self).update(vars(real))
        self._by_user: dict[str, Caller] = {}

    def cached(self, token: bytes, *, deciding: bool = False) -> Caller | None:
        return self._by_user.get(_user_of(token))

    async def verify(self, token: bytes, *, deciding: bool = False) -> Caller:
        return self._by_user.setdefault(_user_of(token), await super().verify(token, deciding=deciding))


def _user_of(token: bytes) -> str:
    part = token.split(b".")[1]
    return str(orjson.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))["sub"])


def change(gateway: Gateway) -> Gateway:
    return replace(gateway, tokens=ByUser(gateway.tokens))


if __name__ == "__main__":
    serve_changed(change)
