"""A gateway that takes any token its issuers signed, anyone who it is for."""

from deputize.govern.identity import claims, token_verifier
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def accept_audience(audience: object, ours: tuple[str, ...], issuer: str) -> tuple[str, ...]:
    """In place of the question whom a token is for."""
    return ours


def change(gateway: Gateway) -> Gateway:
    for module in (claims, token_verifier):
        vars(module)["require_audience"] = accept_audience
    return gateway


if __name__ == "__main__":
    serve_variant(change)
