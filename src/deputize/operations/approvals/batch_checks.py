"""Check a batch of approval requests before any of them is decided."""

from collections.abc import Mapping, Sequence

from deputize.core.errors import MalformedRequest
from deputize.operations.approvals.request_access import ApprovalRequestView


def require_bindings(approval_ids: Sequence[str], bindings: Mapping[str, str]) -> None:
    """Require a binding for each request of a batch, before any is decided."""
    for approval_id in approval_ids:
        if not bindings.get(approval_id):
            raise MalformedRequest(
                f"bindings has none for approval request {approval_id}, so nothing was approved",
                details={"field": "bindings", "approval_id": approval_id},
                advice="Read each approval request first (GET /v1/approvals/{approval_id}), then send its binding.",
            )


def require_alike(approval_requests: Sequence[ApprovalRequestView], vary: frozenset[str]) -> None:
    """Require that the requests differ in nothing but the named arguments."""
    if not approval_requests:
        raise MalformedRequest("no approval request is given", details={"field": "approval_ids"})
    first = approval_requests[0]
    for other in approval_requests[1:]:
        differences = (
            {"tool"} if other.row["group_key"] != first.row["group_key"] else other.list_differences(first) - vary
        )
        if differences:
            raise MalformedRequest(
                f"approval request {other.id} differs from {first.id} in {', '.join(sorted(differences))}",
                details={"approval_id": other.id, "differ": sorted(differences)},
                advice="Name the arguments that may differ in `vary`, or decide this request alone.",
            )
