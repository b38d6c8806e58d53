"""Callers who may decide, and the approval requests they decide."""

from dataclasses import replace
from typing import Any

from deputize.core.caller import Caller
from deputize.core.decision import ApprovalRequirement
from deputize.core.settings import ApprovalSettings
from deputize.govern.approvals.approvers import OpenApproval
from deputize.govern.approvals.requirements import build_approval_plan

NOW = 1_800_000_000
SETTINGS = ApprovalSettings()
ISSUER = "https://people.example"
# The user of the call, and an agent that proved itself with a token.
PARTICIPANTS = ("ana", "bot")
PERSON = Caller(
    tenant="acme", user="ben", issuer=ISSUER, groups=frozenset({"approvers"}), human=True, console=True,
    auth_time=NOW - 60,
)  # fmt: skip


def make_approver(**changes: Any) -> Caller:
    return replace(PERSON, **{name: _freeze_set(value) for name, value in changes.items()})


def _freeze_set(value: Any) -> Any:
    return frozenset(value) if isinstance(value, set) else value


def make_requirement(rule: str = "ask-first", **wants: Any) -> ApprovalRequirement:
    return ApprovalRequirement(rule=rule, where="policies/default.cedar:8", reason="it deletes things", **wants)


def make_request(
    *requirements: ApprovalRequirement, level: int = 0, settings: ApprovalSettings = SETTINGS, **more: Any
) -> OpenApproval:
    plan = build_approval_plan(requirements or (make_requirement(),), settings)
    return OpenApproval(**{"tenant": "acme", "participants": PARTICIPANTS, "plan": plan, "level": level, **more})
