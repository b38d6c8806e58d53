"""Write the notifications to approvers: a link and a few facts, never an argument.

Pure functions. Callers choose some of the names, and chats and mail turn text into links, mentions and markup, so
names are reduced to plain characters. `notifier.py` sends the notifications.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from deputize.core.display_text import clip_text
from deputize.core.states import ToolEvent
from deputize.core.value_types import frozen

_MAX_NAME_LENGTH: Final = 64
_MAX_TOOLS: Final = 10
# What chats and mail read as markup, as part of a link, or as a mention; a mail address keeps its @.
_MARKUP = re.compile(r"[^\w.@+:=-]|(?<!\w)@|_{2,}|:(?=\W)")

_TITLES: Mapping[str, str] = {
    "asked": "{tool} needs your approval",
    "escalated": "{tool} needs your approval: no approver has decided yet",
    "reminder": "Reminder: {tool} still needs your approval",
    "broken-glass": "{tool} was approved by emergency override (break glass) by two people",
}


@frozen
class ApprovalNotification:
    """A notification for people (`title` and `lines`) and for programs (`data`, the body of an event of this type)."""

    type: ToolEvent | Literal["deputize.contract_test.failed", "deputize.sources.disagree"]
    subject: str
    title: str
    lines: tuple[str, ...]
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def to_cloud_event(self, notification_id: str, source: str, time: datetime) -> bytes:
        """Encode the notification as a CloudEvent."""
        return orjson.dumps(
            {
                "specversion": "1.0",
                "id": notification_id,
                "source": source,
                "type": self.type,
                "subject": self.subject,
                "time": time.isoformat(),
                "datacontenttype": "application/json",
                "data": self.data,
            }
        )


@frozen
class PendingApproval:
    """A pending call, with only what every reader of the group's messages may know."""

    approval_id: str
    tool: str
    user: str
    agent: str | None
    expires_at: datetime


def build_notice(
    kind: str, tenant: str, group: str, approval: PendingApproval, url: str | None
) -> ApprovalNotification:
    tool, user, agent = (
        sanitize_name(approval.tool),
        sanitize_name(approval.user),
        sanitize_name(approval.agent) if approval.agent else None,
    )
    is_break_glass = kind == "broken-glass"
    agent_suffix = f", by {agent}" if agent else ""
    lines = [f"For {user}{agent_suffix}, in {sanitize_name(tenant)}."]
    if not is_break_glass:
        lines.append(
            f"Group {sanitize_name(group)} can decide until {_format_time(approval.expires_at)}; then it is denied."
        )
    lines.append(url or f"deputize approvals show {approval.approval_id}")
    return ApprovalNotification(
        type=ToolEvent.PERMISSION_DECIDED if is_break_glass else ToolEvent.PERMISSION_REQUESTED,
        subject=approval.approval_id,
        title=_TITLES[kind].format(tool=tool),
        lines=tuple(lines),
        data={
            "kind": kind,
            "tenant": tenant,
            "group": sanitize_name(group),
            "approval_id": approval.approval_id,
            "tool": tool,
            "for_user": user,
            "agent": agent,
            "expires_at": approval.expires_at.isoformat(),
            "url": url,
        },
    )


def build_digest(
    tenant: str, group: str, tools: Sequence[tuple[str, int]], has_more: bool, first_deadline: datetime, url: str | None
) -> ApprovalNotification:
    """Build a digest: how many calls are pending, of which tools, and the first deadline."""
    count = sum(calls for _, calls in tools)
    count_text = f"{'More than ' if has_more else ''}{count:,}"
    lines = [f"{calls:,} × {sanitize_name(tool)}" for tool, calls in tools[:_MAX_TOOLS]]
    if len(tools) > _MAX_TOOLS:
        lines.append(f"and {len(tools) - _MAX_TOOLS} more tools")
    lines.append(
        f"In {sanitize_name(tenant)}; the first is denied at {_format_time(first_deadline)} unless it is decided."
    )
    lines.append(url or "deputize approvals list")
    return ApprovalNotification(
        type=ToolEvent.PERMISSION_REQUESTED,
        subject=sanitize_name(group),
        title=f"{count_text} calls need approval by {sanitize_name(group)}",
        lines=tuple(lines),
        data={
            "kind": "digest",
            "tenant": tenant,
            "group": sanitize_name(group),
            "count": count,
            "more": has_more,
            "tools": [{"tool": sanitize_name(tool), "calls": calls} for tool, calls in tools[:_MAX_TOOLS]],
            "expires_at": first_deadline.isoformat(),
            "url": url,
        },
    )


def build_test_notice(
    tenant: str, group: str, test_id: str, tool: str, version: str, failures: int, cases: int
) -> ApprovalNotification:
    """Build the notification that the contract test of a tool turned red."""
    return ApprovalNotification(
        type="deputize.contract_test.failed",
        subject=test_id,
        title=f"The contract test of {sanitize_name(tool)} {sanitize_name(version)} failed",
        lines=(
            f"{failures} of {cases} cases failed, in {sanitize_name(tenant)}.",
            f"See which: deputize tool test {sanitize_name(tool)} --version {sanitize_name(version)}",
        ),
        data={
            "kind": "contract-test",
            "tenant": tenant,
            "group": sanitize_name(group),
            "test_id": test_id,
            "tool": sanitize_name(tool),
            "version": sanitize_name(version),
            "failures": failures,
            "cases": cases,
        },
    )


def build_disagreement_notice(
    tenant: str, group: str, disagreement_id: str, rule: str, tools: Sequence[str], call_ids: Sequence[str]
) -> ApprovalNotification:
    """Build the notification that sources disagree and no rule resolves it."""
    sources = [{"tool": sanitize_name(tool), "call_id": call_id} for tool, call_id in zip(tools, call_ids, strict=True)]
    return ApprovalNotification(
        type="deputize.sources.disagree",
        subject=disagreement_id,
        title=f"Sources disagree: {' and '.join(each['tool'] for each in sources)}",
        lines=(
            f"They returned different values of one thing, in {sanitize_name(tenant)}; rule {sanitize_name(rule)}.",
            "Calls fail until the one that is wrong is corrected and called again.",
            *(f"deputize calls show {each['call_id']}" for each in sources),
        ),
        data={
            "kind": "disagreement",
            "tenant": tenant,
            "group": sanitize_name(group),
            "disagreement_id": disagreement_id,
            "rule": sanitize_name(rule),
            "sources": sources,
        },
    )


def sanitize_name(text: str) -> str:
    """Shorten a name that a caller chose and replace characters that could become markup, links or mentions."""
    prefix, rest = clip_text(text, _MAX_NAME_LENGTH)
    return _MARKUP.sub("·", prefix) + ("…" if rest else "")


def _format_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
