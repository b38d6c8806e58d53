"""Show what needs a person, the newest calls and the last hour; and find what is searched for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from deputize.core.caller import Caller
from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    CALLS_PAGE_PATH,
    CONSOLE_PATH,
    TOOLS_PAGE_PATH,
)
from deputize.interfaces.console.call_view import build_rows
from deputize.interfaces.console.charts import draw_bars, format_milliseconds
from deputize.interfaces.console.pages import LIVE_PATH, ConsolePages
from deputize.interfaces.console.view import build_list_view, format_line
from deputize.operations.gateway import AuditQuery, ConsoleSession, EntryFilter

_MAX_TASKS: Final = 10
_TASK_TEXTS: Final = {
    "reconcile": "the outcome is unknown",
    "fallback": "no alternative answers",
    "compensate": "a step could not be taken back",
    "undo": "an undo is asked for",
}
_NEWEST: Final = 15
_MAX_REFUSALS: Final = 200
_MINUTES: Final = 60


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
        page = await gateway.audit_search.search(
            caller, AuditQuery(filter=EntryFilter(of_calls=True)), before=None, limit=_NEWEST
        )
        return self._render_page(
            "home.html",
            session,
            has_script=True,
            tasks=await self._list_tasks(caller),
            charts=await self._build_charts(caller) if caller.is_auditor else [],
            rows=build_rows(page["entries"]),
            live_path=LIVE_PATH,
        )

    async def search(self, request: Request, session: ConsoleSession) -> Response:
        """Open the call with an id; anything else is a search of tools."""
        text = request.query_params.get("q", "").strip()[:200]
        try:
            return self._redirect(f"{CALLS_PAGE_PATH}/{UUID(text)}")
        except ValueError:
            return self._redirect(f"{TOOLS_PAGE_PATH}?{urlencode({'q': text})}")

    async def _list_tasks(self, caller: Caller) -> list[dict[str, str]]:
        """List what waits for this person: approval requests, human tasks, servers that changed or are away."""
        gateway = self._get_gateway()
        now = gateway.clock.now()
        requests = build_list_view(await gateway.approvals.list_requests(caller, limit=_MAX_TASKS), now=now)
        tasks = [
            {
                "icon": "●",
                "text": f"{each['tool']} waits for approval",
                "aside": f"asked {each['opened_at'].distance}, denied automatically {each['expires_at'].distance}",
                "path": f"{APPROVALS_PAGE_PATH}/{each['id']}",
            }
            for each in requests
        ]
        tasks += [
            {
                "icon": "↶",
                "text": f"{format_line(each['tool'])}: {_TASK_TEXTS['undo']}",
                "aside": f"by {format_line(each['agent'] or each['user'])} · deputize undo {each['call_id']}",
                "path": f"{CALLS_PAGE_PATH}/{each['call_id']}",
            }
            for each in (await gateway.undo.requests.list_requests(caller))[:_MAX_TASKS]
        ]
        if not caller.can_operate:
            return tasks
        tasks += [
            {
                "icon": "?",
                "text": f"{format_line((each['call']['tool'] or {}).get('name', ''))}: {_TASK_TEXTS[each['kind']]}",
                "aside": f"{format_line(each['question']['asked'])} · deputize tasks show {each['task_id']}",
                "path": f"{CALLS_PAGE_PATH}/{each['call']['call_id']}",
            }
            for each in await gateway.human_tasks.list_tasks(caller, limit=_MAX_TASKS)
            if each["kind"] != "undo"
        ]
        for server in await gateway.servers.list_servers(caller):
            name, path = format_line(server["name"]), f"{ACCOUNTS_PAGE_PATH}/{server['name']}/changes"
            if server["changes"]:
                count = f"{server['changes']} change" + ("s" if server["changes"] > 1 else "")
                tasks.append({"icon": "△", "text": f"{name} changed", "aside": f"{count} to review", "path": path})
            elif server["status"] == "unavailable":
                why = format_line(server["why"] or "")
                tasks.append({"icon": "✕", "text": f"{name} is unavailable", "aside": why, "path": path})
        return tasks

    async def _build_charts(self, caller: Caller) -> list[ChartView]:
        gateway = self._get_gateway()
        minutes = (await gateway.activity.report_minutes(caller))["minutes"]
        first = datetime.fromisoformat(minutes[0]["minute"])
        query = AuditQuery(filter=EntryFilter(decision="deny", of_calls=True), since=first)
        found = await gateway.audit_search.search(caller, query, before=None, limit=_MAX_REFUSALS)
        return build_charts(minutes, found["entries"], has_more=found["next_before"] is not None)


def build_charts(
    minutes: Sequence[Mapping[str, Any]], refusals: Sequence[Mapping[str, Any]], *, has_more: bool
) -> list[ChartView]:
    """Build the charts of the last hour. Of very many refusals the newest are counted, which the number says."""
    first = datetime.fromisoformat(minutes[0]["minute"])
    counts = Counter((datetime.fromisoformat(each["time"]) - first) // timedelta(minutes=1) for each in refusals)
    labels = [f"{datetime.fromisoformat(each['minute']):%H:%M}" for each in minutes]
    calls, errors = [each["calls"] for each in minutes], [each["errors"] for each in minutes]
    denials = [counts.get(number, 0) for number in range(_MINUTES)]
    latencies = [None if each["p95_seconds"] is None else each["p95_seconds"] * 1000 for each in minutes]
    slowest = max((each for each in latencies if each is not None), default=None)
    return [
        _build_count_chart("Calls", calls, labels, "calm"),
        _build_count_chart("Refusals", denials, labels, "pending", suffix="+" if has_more else ""),
        _build_count_chart("Errors", errors, labels, "bad"),
        ChartView(
            title="Latency, p95 of the slowest minute",
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
