"""A gateway that asks no one who decides whether they are a person, signed in for that, and had no part in it."""

from deputize.core.caller import Caller
from deputize.core.settings import ApprovalSettings
from deputize.govern.approvals import approvers
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def accept_decider(caller: Caller, ticket: approvers.OpenApproval, now: int, settings: ApprovalSettings) -> None:
    """In place of the questions about anyone who decides."""


def change(gateway: Gateway) -> Gateway:
    vars(approvers)["_require_person"] = accept_decider
    return gateway


if __name__ == "__main__":
    serve_variant(change)
