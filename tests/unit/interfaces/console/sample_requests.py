"""Approval requests as `lifecycle/approval/presentation.py` tells them, for tests of pages that need no gateway."""

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

NOW = datetime(2026, 11, 14, 14, 2, tzinfo=UTC)
REQUEST_ID = "01997f2e-3b1c-7a52-8d3e-2f60b1c4d5e6"
CALL_ID = "01997f2e-3b1c-7a52-8d3e-2f60b1c4d5e7"

_TOOL = {
    "name": "crm.delete_user",
    "version": "2.1.0",
    "digest": "c41e" * 16,
    "title": "Delete a user",
    "description": "Delete a user with everything that belongs to them.",
}
_PREVIEW: dict[str, Any] = {
    "by": "tool",
    "changes": [
        {
            "resource": "crm.users",
            "op": "delete",
            "scope": "7",
            "count": 1,
            "before": {"name": "Bo", "plan": "pro"},
        },
        {"resource": "crm.invoices", "op": "delete", "scope": "*", "count": 14},
    ],
    "resources": ["crm.users/7", "crm.invoices/*", "search.index/7"],
    "preconditions": [{"name": "no open orders", "holds": True, "detail": "0 of 3 are open"}],
    "impact": {"customers": 1, "revenue per month": "€ 49"},
    "unknown": [],
    "previewed_at": "2026-11-14T13:20:00.000Z",
    "problem": None,
    "fresh_seconds": 300,
}


def make_request(**changes: Any) -> dict[str, Any]:
    """A call that deletes a user, asked for by a bot; changes replace what stands there."""
    return {
        "approval_id": REQUEST_ID,
        "call_id": CALL_ID,
        "state": "open",
        "call_state": "awaiting_approval",
        "tool": dict(_TOOL),
        "effects": "destructive",
        "undo": "crm.restore_user",
        "for_user": "ana@acme.example",
        "agents": ["billing-bot", "planner"],
        "task": "close the account of case 881",
        "session": "s-88",
        "environment": "production",
        "arguments": {"id": 7, "hard": True, "note": "asked by the customer", "iban": "[redacted]"},
        "preview": deepcopy(_PREVIEW),
        "rules": [
            {
                "id": "destructive-needs-human",
                "where": "policies/default.cedar:8",
                "reason": "What cannot be taken back is put to a person.",
            }
        ],
        "demands": [
            {"rule": "destructive-needs-human", "groups": ["oncall", "leads"], "quorum": 2, "step_up": "", "have": 1}
        ],
        "level": 0,
        "groups": ["oncall"],
        "opened_at": "2026-11-14T13:20:00+00:00",
        "escalates_at": "2026-11-14T14:20:00+00:00",
        "expires_at": "2026-11-15T13:20:00+00:00",
        "votes": [
            {
                "by": "eva@acme.example",
                "approve": True,
                "reason": "GDPR 881",
                "at": "2026-11-14T13:41:00+00:00",
                "broke_glass": False,
            }
        ],
        "binding": "ab" * 32,
        "url": f"https://gateway.example/console/approvals/{REQUEST_ID}",
        "may_decide": True,
        "may_deny": True,
        "why_not": "",
        "why_not_rule": None,
        **changes,
    }


def make_list_item(**changes: Any) -> dict[str, Any]:
    return {
        "approval_id": REQUEST_ID,
        "call_id": CALL_ID,
        "state": "open",
        "tool": {"name": "crm.delete_user", "version": "2.1.0"},
        "for_user": "ana@acme.example",
        "agent": "billing-bot",
        "level": 0,
        "opened_at": "2026-11-14T13:20:00+00:00",
        "expires_at": "2026-11-15T13:20:00+00:00",
        "url": None,
        "arguments": {"id": 77},
        **changes,
    }


def make_undo_request(**changes: Any) -> dict[str, Any]:
    """An undo of three calls, of which two are approved together."""
    step: dict[str, Any] = {
        "entry_id": CALL_ID, "undone_call_id": CALL_ID, "undone_tool": "crm.rename_user", "tool": "crm.rename_user",
        "version": "2.1.0", "effects": "write", "decision": "ask", "detail": None, "source_agents": ["billing-bot"],
        "arguments": {"id": 7, "name": "Ada"}, "origins": {"id": "arguments", "name": "before"},
        "rules": [{"id": "destructive-needs-human", "where": "", "reason": ""}], "preview": deepcopy(_PREVIEW),
    }  # fmt: skip
    allowed = {**step, "tool": "notes.remove", "decision": "allow", "rules": [], "preview": None}
    refused = {
        **step, "tool": "crm.restore_user", "decision": "refused", "detail": "its user is gone", "arguments": None,
        "rules": [], "preview": None,
    }  # fmt: skip
    steps = [step, allowed, {**deepcopy(step), "preview": None}, refused]
    return make_request(agents=[], undo_steps=steps, **changes)
