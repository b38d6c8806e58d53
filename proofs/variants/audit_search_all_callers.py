"""A gateway that takes everybody for an auditor: the search limits nobody to their own entries."""

from deputize.core.caller import Caller
from proofs.kit.gateway_variant import serve_variant

if __name__ == "__main__":
    Caller.is_auditor = property(lambda _: True)  # type: ignore[assignment,method-assign]
    serve_variant(lambda gateway: gateway)
