"""Show a call of a flow: its graph with the state of each step, the calls of the steps, and what a failed one left."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from deputize.core.contract.contract import MutationClass
from deputize.core.contract.flow import Flow
from deputize.core.display_text import to_display_text
from deputize.core.settings.urls import CALLS_PAGE_PATH, FLOWS_PAGE_PATH
from deputize.core.states import TERMINAL_STATES
from deputize.interfaces.console.call_view import STATE_BADGES
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.view import build_badge, format_line
from deputize.interfaces.flow_graph import draw_svg
from deputize.operations.gateway import ConsoleSession

_STEP_BADGES: Final = {
    "waiting": ("·", "waiting", "plain"),
    "running": ("▶", "running", "pending"),
    "succeeded": ("✓", "succeeded", "good"),
    "skipped": ("↷", "skipped", "plain"),
    "failed": ("✕", "failed", "bad"),
    "discarded": ("–", "not run, or stopped", "plain"),
    "compensated": ("↶", "taken back", "plain"),
}
# Of a step in many rounds the newest calls are shown.
_MAX_STEP_CALLS: Final = 20


class FlowPages(ConsolePages):
    """The handler of /console/flows/{flow_id}."""

    # A flow is a call.
    section_path = CALLS_PAGE_PATH

    async def show_flow(self, request: Request, session: ConsoleSession) -> Response:
        view = await self._get_gateway().flows.show_flow(session.caller, str(request.path_params["flow_id"]))
        flow = build_flow_view(view)
        followed_path = "" if flow["is_ended"] else f"{FLOWS_PAGE_PATH}/{flow['call_id']}"
        return self._render_page("flow.html", session, has_script=True, followed_path=followed_path, flow=flow)


def build_flow_view(view: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a flow for its page."""
    statuses = {each["name"]: str(each["status"]) for each in view["steps"]}
    state, tool = str(view["state"]), format_line(view["tool"])
    graph = draw_svg(Flow.model_validate(view["flow"]), statuses, title=f"The steps of {tool} and how far each is")
    return {
        "call_id": view["call_id"],
        "tool": tool,
        "version": format_line(view["version"]),
        "state": build_badge(STATE_BADGES, state),
        "is_ended": state in TERMINAL_STATES,
        # The drawing escapes what it writes.
        "graph": Markup(graph),
        "steps": [_build_step(each) for each in view["steps"]],
        # After a success there is nothing to clean up.
        "left": list_left_calls(view) if state in TERMINAL_STATES and state != "succeeded" else [],
        "compensation": None if view["compensation"] is None else view["compensation"]["state"],
    }


def list_left_calls(view: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the calls of a failed flow that changed something, or may have, and stay: why, if taking back was tried."""
    if view["compensation"] is not None:
        return [
            {"id": each["call_id"], "path": format_line(each["step"]), "reason": to_display_text(each["detail"], 600)}
            for each in view["compensation"]["left"]
        ]
    steps: Sequence[Mapping[str, Any]] = view["steps"]
    return [
        _build_step_call(each)
        for step in steps
        for each in step["calls"]
        if each["state"] in ("succeeded", "unknown") and each["mutation_class"] != MutationClass.READ
    ]


def _build_step(step: Mapping[str, Any]) -> dict[str, Any]:
    calls = step["calls"]
    return {
        "name": format_line(step["name"]),
        "tool": format_line(step["tool"] or ""),
        "state": build_badge(_STEP_BADGES, str(step["status"])),
        "calls": [_build_step_call(each) for each in calls[-_MAX_STEP_CALLS:]],
        "more_calls": max(0, len(calls) - _MAX_STEP_CALLS),
    }


def _build_step_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": call["call_id"],
        "path": format_line(call["step"]),
        "state": build_badge(STATE_BADGES, str(call["state"])),
        "error": to_display_text(str((call["error"] or {}).get("message") or ""), 600),
    }
