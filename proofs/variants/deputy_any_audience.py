"""A gateway that takes any token its issuers signed, whoever it is for."""

from deputize.govern.identity import claims, tokens
from deputize.lifecycle.gateway import Gateway
from proofs.kit.variant import serve_changed


def never_asks(audience: object, ours: tuple[str, ...], issuer: str) -> tuple[str, ...]:
    """In place of the question whom a token is for."""
    return ours


def change(gateway: Gateway) -> Gateway:
    for module in (claims, tokens):
        vars(module)["require_audience"] = never_asks
    return gateway


if __name__ == "__main__":
    serve_changed(change)
