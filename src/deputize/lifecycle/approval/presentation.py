"""Describe approval requests to callers, approvers and programs. Interfaces escape the texts that callers wrote."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import orjson

from deputize.core.caller import parse_nearest_agent
from deputize.core.settings.urls import build_approval_url
from deputize.lifecycle.approval.approval_request import ApprovalContents, ApprovalRequest
from deputize.lifecycle.runtime import Runtime


def describe_new_request(runtime: Runtime, approval_request: ApprovalRequest) -> dict[str, Any]:
    """Describe a new approval request to its caller."""
    plan = approval_request.plan
    opened_at = approval_request.binding_parts.expires_at - timedelta(seconds=plan.seconds)
    return {
        "approval_id": approval_request.id,
        "state": "open",
        "url": build_approval_url(runtime.settings, approval_request.id),
        "groups": sorted(plan.get_groups(0)),
        "rules": approval_request.contents.presentation["rules"],
        "steps": approval_request.step_count,
        "escalates_at": format_time(opened_at + timedelta(seconds=plan.levels[0])) if plan.levels else None,
        "expires_at": format_time(approval_request.binding_parts.expires_at),
    }


def describe_request(runtime: Runtime, row: asyncpg.Record, groups: Sequence[str]) -> dict[str, Any]:
    """Describe a stored approval request to its caller."""
    demands = orjson.loads(row["demands"])
    return {
        "approval_id": str(row["id"]),
        "state": row["state"],
        "url": build_approval_url(runtime.settings, str(row["id"])),
        "groups": list(groups),
        "rules": [{"id": each["rule"], "where": each["where"], "reason": each["reason"]} for each in demands],
        "steps": max((each.get("steps", 1) for each in demands), default=1),
        "escalates_at": compute_escalation_time(row),
        "expires_at": format_time(row["expires_at"]),
    }


def describe_list_item(runtime: Runtime, row: asyncpg.Record) -> dict[str, Any]:
    return {
        "approval_id": str(row["id"]),
        "call_id": str(row["call_id"]),
        "state": row["state"],
        "tool": {"name": row["tool"], "version": row["version"]},
        "for_user": row["caller_user"],
        "agent": parse_nearest_agent(row["caller_agent"]) or None,
        "level": row["level"],
        "opened_at": format_time(row["opened_at"]),
        "expires_at": format_time(row["expires_at"]),
        "url": build_approval_url(runtime.settings, str(row["id"])),
    }


def describe_full_request(
    runtime: Runtime,
    row: asyncpg.Record,
    contents: ApprovalContents,
    groups: Sequence[str],
    votes: Sequence[asyncpg.Record],
) -> dict[str, Any]:
    """Describe everything that an approver needs to decide."""
    return {
        "approval_id": str(row["id"]),
        "call_id": str(row["call_id"]),
        "state": row["state"],
        "call_state": row["call_state"],
        "call_error": row["call_error"],
        **contents.presentation,
        "demands": [
            {
                "rule": each["rule"],
                "groups": each["groups"],
                "quorum": each["quorum"],
                "step_up": each["step_up"],
                "have": sum(vote["approve"] and index in vote["counts"] for vote in votes),
            }
            for index, each in enumerate(orjson.loads(row["demands"]))
        ],
        "level": row["level"],
        "groups": list(groups),
        "opened_at": format_time(row["opened_at"]),
        "escalates_at": compute_escalation_time(row),
        "expires_at": format_time(row["expires_at"]),
        "votes": [
            {
                "by": vote["voter"],
                "approve": vote["approve"],
                "reason": vote["reason"],
                "at": format_time(vote["at"]),
                "broke_glass": vote["break_glass"],
            }
            for vote in votes
        ],
        "binding": row["binding"].hex(),
        "url": build_approval_url(runtime.settings, str(row["id"])),
    }


def compute_escalation_time(row: asyncpg.Record) -> str | None:
    """Compute when the next groups are asked; None if there are no more."""
    levels, level = row["levels"], row["level"]
    if row["state"] != "open" or level >= len(levels):
        return None
    at = row["opened_at"] + timedelta(seconds=levels[level])
    return format_time(at) if at < row["expires_at"] else None


def format_time(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
