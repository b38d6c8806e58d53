"""Show what needs a person, the newest calls and the last hour; and find what is searched for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from deputize.core.caller import Caller
from deputize.core.clock import make_first_id
from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    CALLS_PAGE_PATH,
    CONSOLE_PATH,
    TOOLS_PAGE_PATH,
)
from deputize.interfaces.console.call_view import build_rows
from deputize.interfaces.console.charts import draw_bars, format_milliseconds
from deputize.interfaces.console.entry_query import format_address
from deputize.interfaces.console.pages import LIVE_PATH, ConsolePages
from deputize.interfaces.console.view import build_time_view, format_line
from deputize.operations.gateway import AuditQuery, ConsoleSession, EntryFilter

_TRACE_ID: Final = re.compile("[0-9a-f]{32}")
_TASK_TEXTS: Final = {
    "reconcile": "the outcome is unknown",
    "fallback": "no alternative answers",
    "compensate": "a step could not be taken back",
    "undo": "an undo is asked for",
}
_NEWEST: Final = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartView:
    """A chart with its number and the table behind it."""

    title: str
    number: str
    picture: Markup
    rows: list[tuple[str, str]]


class HomePages(ConsolePages):
    """The handlers of /console and of the search."""

    section_path = CONSOLE_PATH

    async def show_home(self, request: Request, session: ConsoleSession) -> Response:
        gateway, caller = self._get_gateway(), session.caller
        first_live_id = make_first_id(gateway.clock.epoch_ms())
        page = await gateway.audit_search.search(
            caller, AuditQuery(filter=EntryFilter(of_calls=True)), before=None, limit=_NEWEST, is_page=True
        )
        return self._render_page(
            "home.html",
            session,
            has_script=True,
            tasks=await self._list_tasks(caller),
            charts=await self._build_charts(caller) if caller.is_auditor else [],
            rows=build_rows(page["entries"]),
            live_path=format_address(LIVE_PATH, {}, after=first_live_id),
        )

    async def search(self, request: Request, session: ConsoleSession) -> Response:
        """Open the call with an id, or list those of a trace; anything else is a search of tools."""
        text = request.query_params.get("q", "").strip()[:200]
        if _TRACE_ID.fullmatch(text):
            return self._redirect(f"{CALLS_PAGE_PATH}?{urlencode({'trace': text})}")
        try:
            return self._redirect(f"{CALLS_PAGE_PATH}/{UUID(text)}")
        except ValueError:
            return self._redirect(f"{TOOLS_PAGE_PATH}?{urlencode({'q': text})}")

    async def _list_tasks(self, caller: Caller) -> list[dict[str, str]]:
        """List what waits for this person: approval requests, human tasks, servers that changed or are away."""
        gateway = self._get_gateway()
        return [_build_task(each, now=gateway.clock.now()) for each in await gateway.waiting.list_waiting(caller)]

    async def _build_charts(self, caller: Caller) -> list[ChartView]:
        gateway = self._get_gateway()
        report = await gateway.activity.report_minutes(caller)
        return build_charts(report["minutes"], has_more=not report["has_all_refusals"])


def _build_task(item: Mapping[str, Any], *, now: datetime) -> dict[str, str]:
    kind = item["kind"]
    if kind == "server":
        name, count = format_line(item["name"]), item["changes"]
        text = f"{name} changed" if count else f"{name} is unavailable"
        changes = f"{count} change{'s' if count > 1 else ''} to review"
        return {
            "icon": "△" if count else "✕",
            "text": text,
            "aside": changes if count else format_line(item["why"] or ""),
            "path": f"{ACCOUNTS_PAGE_PATH}/{item['name']}/changes",
        }
    tool, call_path = format_line(item["tool"] or ""), f"{CALLS_PAGE_PATH}/{item['call_id']}"
    if kind == "approval":
        asked, ends = (build_time_view(item[name], now=now) for name in ("opened_at", "ends_at"))
        maker = f"{item['agent']} for {item['user']}" if item["agent"] else item["user"]
        return {
            "icon": "●",
            "text": f"{tool} waits for approval",
            "aside": f"asked {asked.distance if asked else ''} by {format_line(maker)}, "
            f"denied automatically {ends.distance if ends else ''}",
            "path": f"{APPROVALS_PAGE_PATH}/{item['id']}",
        }
    if kind == "undo":
        by = format_line(item["agent"] or item["user"])
        aside = f"by {by} · deputize undo {item['call_id']}"
        return {"icon": "↶", "text": f"{tool}: {_TASK_TEXTS[kind]}", "aside": aside, "path": call_path}
    return {
        "icon": "?",
        "text": f"{tool}: {_TASK_TEXTS[kind]}",
        "aside": f"{format_line(item['asked'])} · deputize tasks show {item['id']}",
        "path": call_path,
    }


def build_charts(minutes: Sequence[Mapping[str, Any]], *, has_more: bool) -> list[ChartView]:
    """Build the charts of the last hour. Of very many refusals the newest are counted, which the number says."""
    labels = [f"{datetime.fromisoformat(each['minute']):%H:%M}" for each in minutes]
    calls, errors = [each["calls"] for each in minutes], [each["errors"] for each in minutes]
    denials = [each["refusals"] for each in minutes]
    latencies = [None if each["p95_seconds"] is None else each["p95_seconds"] * 1000 for each in minutes]
    slowest = max((each for each in latencies if each is not None), default=None)
    return [
        _build_count_chart("Calls that reached a tool", calls, labels, "calm"),
        _build_count_chart("Refusals", denials, labels, "pending", suffix="+" if has_more else ""),
        _build_count_chart("Failures of tools and services", errors, labels, "bad"),
        ChartView(
            title="p95 latency, slowest minute",
            number="–" if slowest is None else format_milliseconds(slowest),
            picture=draw_bars("The latency that 95% of calls kept, by minute", latencies, "calm"),
            rows=[
                (label, format_milliseconds(each))
                for label, each in zip(labels, latencies, strict=True)
                if each is not None
            ],
        ),
    ]


def _build_count_chart(
    title: str, values: Sequence[int], labels: Sequence[str], tone: str, *, suffix: str = ""
) -> ChartView:
    return ChartView(
        title=title,
        number=f"{sum(values):,}{suffix}",
        picture=draw_bars(f"{title} by minute in the last hour", values, tone),
        rows=[(label, f"{each:,}") for label, each in zip(labels, values, strict=True) if each],
    )
