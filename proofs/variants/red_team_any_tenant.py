"""A gateway whose issuers may name any tenant, and to which equal subjects of two issuers are one, as in 0.1.0."""

from unittest.mock import patch

from deputize.core.caller import Caller
from deputize.govern.identity import claims, primary_issuers
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


async def _keep_subject(_: TokenVerifier, caller: Caller) -> Caller:
    return caller


def change(gateway: Gateway) -> Gateway:
    for module in (claims, primary_issuers):
        patch.object(module, "can_speak_for", lambda *_: True).start()
    patch.object(TokenVerifier, "qualify_caller", _keep_subject).start()
    return gateway


if __name__ == "__main__":
    serve_variant(change)
