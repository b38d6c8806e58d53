"""What people are told of what waits for them: a link and a few facts, never an argument, in words nobody can bend.

Pure functions. Names that callers chose stand among our own words in chats and mails that make links, mentions and
markup of what they find: nothing but plain letters gets that far. Above: `telling.py`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from deputize.core.events import Event
from deputize.core.frozen import frozen
from deputize.core.plain import clip

_LONGEST_NAME: Final = 64
_MOST_TOOLS: Final = 10
# What chats and mails read as markup, as part of a link, or as calling somebody; a mail address keeps its sign.
_ACTIVE = re.compile(r"[^\w.@+:=-]|(?<!\w)@|_{2,}|:(?=\W)")

_TITLES: Mapping[str, str] = {
    "asked": "{tool} waits for a yes or a no",
    "escalated": "{tool} waits, and nobody has decided",
    "reminder": "{tool} still waits for a yes or a no",
    "broken-glass": "{tool} was let through: two people broke the glass",
}


@frozen
class Letter:
    """The same for people and for programs: `title` and `lines`, or `data` as the body of an event of this type."""

    type: Event
    subject: str
    title: str
    lines: tuple[str, ...]
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def event(self, letter_id: str, source: str, time: datetime) -> bytes:
        """A CloudEvent."""
        return orjson.dumps(
            {
                "specversion": "1.0",
                "id": letter_id,
                "source": source,
                "type": self.type,
                "subject": self.subject,
                "time": time.isoformat(),
                "datacontenttype": "application/json",
                "data": self.data,
            }
        )


@frozen
class About:
    """One call that waits, as far as anybody may know who can read the group's messages."""

    ticket: str
    tool: str
    user: str
    agent: str | None
    expires_at: datetime


def about_one(kind: str, tenant: str, group: str, about: About, link: str | None) -> Letter:
    tool, user, agent = named(about.tool), named(about.user), named(about.agent) if about.agent else None
    loud = kind == "broken-glass"
    by = f", by {agent}" if agent else ""
    lines = [f"For {user}{by}, in {named(tenant)}."]
    if not loud:
        lines.append(f"Asked of {named(group)} until {_when(about.expires_at)}; after that the answer is no.")
    lines.append(link or f"deputize approvals show {about.ticket}")
    return Letter(
        type=Event.PERMISSION_DECIDED if loud else Event.PERMISSION_REQUESTED,
        subject=about.ticket,
        title=_TITLES[kind].format(tool=tool),
        lines=tuple(lines),
        data={
            "kind": kind,
            "tenant": tenant,
            "group": named(group),
            "ticket_id": about.ticket,
            "tool": tool,
            "for_user": user,
            "agent": agent,
            "expires_at": about.expires_at.isoformat(),
            "url": link,
        },
    )


def about_many(
    tenant: str, group: str, tools: Sequence[tuple[str, int]], more: bool, first_ends: datetime, link: str | None
) -> Letter:
    """A digest: how many wait, of which tools, and until when the first of them does."""
    count = sum(calls for _, calls in tools)
    told = f"{'More than ' if more else ''}{count:,}"
    lines = [f"{calls:,} × {named(tool)}" for tool, calls in tools[:_MOST_TOOLS]]
    if len(tools) > _MOST_TOOLS:
        lines.append(f"and {len(tools) - _MOST_TOOLS} more tools")
    lines.append(f"In {named(tenant)}; the first is denied at {_when(first_ends)} if nobody decides.")
    lines.append(link or "deputize approvals list")
    return Letter(
        type=Event.PERMISSION_REQUESTED,
        subject=named(group),
        title=f"{told} calls wait for {named(group)}",
        lines=tuple(lines),
        data={
            "kind": "digest",
            "tenant": tenant,
            "group": named(group),
            "count": count,
            "more": more,
            "tools": [{"tool": named(tool), "calls": calls} for tool, calls in tools[:_MOST_TOOLS]],
            "expires_at": first_ends.isoformat(),
            "url": link,
        },
    )


def named(text: str) -> str:
    """A name somebody chose, so that it can only be read."""
    shown, rest = clip(text, _LONGEST_NAME)
    return _ACTIVE.sub("·", shown) + ("…" if rest else "")


def _when(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
