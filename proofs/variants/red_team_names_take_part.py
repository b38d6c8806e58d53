"""A gateway to which every name of a chain of agents has taken part in the call, as it was in 0.1.0."""

from unittest.mock import patch

from deputize.core.caller import Caller
from deputize.operations.approvals import request_access
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    patch.object(Caller, "participants", property(lambda caller: caller.subjects)).start()
    patch.object(request_access, "parse_participants", lambda names, _: tuple(names)).start()
    return gateway


if __name__ == "__main__":
    serve_variant(change)
