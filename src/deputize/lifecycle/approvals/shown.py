"""What callers, approvers and programs are told of a ticket. Texts are as callers wrote them: doors make them plain."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import orjson

from deputize.core.caller import nearest_of
from deputize.core.settings import Settings
from deputize.lifecycle.approvals.tickets import Sealed, Ticket
from deputize.lifecycle.rooms import Rooms


def console_link(settings: Settings, ticket_id: str) -> str | None:
    """Where a person looks at it; nowhere if this gateway does not know its own address."""
    base = settings.approvals.console_url or settings.identity.public_url
    return None if base is None else f"{base.rstrip('/')}/console/tickets/{ticket_id}"


def told_of_new(rooms: Rooms, ticket: Ticket) -> dict[str, Any]:
    """To whoever made the call, at once."""
    asked = ticket.asked
    opened = ticket.bound.expires_at - timedelta(seconds=asked.seconds)
    return {
        "ticket_id": ticket.id,
        "state": "open",
        "url": console_link(rooms.settings, ticket.id),
        "groups": sorted(asked.groups_at(0)),
        "rules": ticket.sealed.shown["rules"],
        "escalates_at": when(opened + timedelta(seconds=asked.levels[0])) if asked.levels else None,
        "expires_at": when(ticket.bound.expires_at),
    }


def told_of(rooms: Rooms, row: asyncpg.Record, groups: Sequence[str]) -> dict[str, Any]:
    """The same, of a ticket that was opened before."""
    return {
        "ticket_id": str(row["id"]),
        "state": row["state"],
        "url": console_link(rooms.settings, str(row["id"])),
        "groups": list(groups),
        "rules": [
            {"id": each["rule"], "where": each["where"], "reason": each["reason"]}
            for each in orjson.loads(row["demands"])
        ],
        "escalates_at": escalates_at(row),
        "expires_at": when(row["expires_at"]),
    }


def in_a_list(rooms: Rooms, row: asyncpg.Record) -> dict[str, Any]:
    return {
        "ticket_id": str(row["id"]),
        "call_id": str(row["call_id"]),
        "state": row["state"],
        "tool": {"name": row["tool"], "version": row["version"]},
        "for_user": row["caller_user"],
        "agent": nearest_of(row["caller_agent"]) or None,
        "level": row["level"],
        "opened_at": when(row["opened_at"]),
        "expires_at": when(row["expires_at"]),
        "url": console_link(rooms.settings, str(row["id"])),
    }


def in_full(
    rooms: Rooms, row: asyncpg.Record, sealed: Sealed, groups: Sequence[str], votes: Sequence[asyncpg.Record]
) -> dict[str, Any]:
    """Everything somebody needs to decide, on one screen."""
    return {
        "ticket_id": str(row["id"]),
        "call_id": str(row["call_id"]),
        "state": row["state"],
        "call_state": row["call_state"],
        **sealed.shown,
        "demands": [
            {
                "rule": each["rule"],
                "groups": each["groups"],
                "quorum": each["quorum"],
                "step_up": each["step_up"],
                "have": sum(vote["approve"] and place in vote["counts"] for vote in votes),
            }
            for place, each in enumerate(orjson.loads(row["demands"]))
        ],
        "level": row["level"],
        "groups": list(groups),
        "opened_at": when(row["opened_at"]),
        "escalates_at": escalates_at(row),
        "expires_at": when(row["expires_at"]),
        "votes": [
            {
                "by": vote["voter"],
                "approve": vote["approve"],
                "reason": vote["reason"],
                "at": when(vote["at"]),
                "broke_glass": vote["glass"],
            }
            for vote in votes
        ],
        "binding": row["binding"].hex(),
        "url": console_link(rooms.settings, str(row["id"])),
    }


def escalates_at(row: asyncpg.Record) -> str | None:
    """When more people are asked; nothing once everybody was."""
    levels, level = row["levels"], row["level"]
    if row["state"] != "open" or level >= len(levels):
        return None
    at = row["opened_at"] + timedelta(seconds=levels[level])
    return when(at) if at < row["expires_at"] else None


def when(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
