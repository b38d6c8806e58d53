"""A gateway whose undos have an ordinary key, and whose calls do not say what they take back."""

import hashlib
from typing import Any

from deputize.lifecycle import claim
from deputize.lifecycle.phases import Authorized, IdempotencyKey
from deputize.lifecycle.recording import audit
from deputize.operations.gateway import Gateway
from deputize.store.commit_rows import OpenCallRow
from proofs.kit.gateway_variant import serve_variant

_derive_key, _build_opening_row = claim.derive_key, audit.build_opening_row


def derive_by_attempt(authorized: Authorized, arguments_digest: bytes) -> IdempotencyKey:
    undoes = authorized.call.request.undoes
    if undoes is None:
        return _derive_key(authorized, arguments_digest)
    digest = hashlib.sha256(f"undo:{undoes}:0".encode()).digest()
    return IdempotencyKey(scope=b"attempts", digest=digest, window_seconds=authorized.contract.window_seconds)


def build_without_undo(*positional: Any, **keywords: Any) -> OpenCallRow:
    return _build_opening_row(*positional, **keywords)._replace(undoes=None)


def change(gateway: Gateway) -> Gateway:
    vars(claim)["derive_key"] = derive_by_attempt
    vars(audit)["build_opening_row"] = build_without_undo
    return gateway


if __name__ == "__main__":
    serve_variant(change)
