"""Show agents and the grants they act by, and revoke a grant after a question."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.caller import Caller
from deputize.core.errors import GrantNotFound, MalformedRequest, Problem
from deputize.core.settings.urls import AGENTS_PAGE_PATH, SWITCHES_PAGE_PATH
from deputize.interfaces.console.call_view import build_state_badge
from deputize.interfaces.console.csrf import read_form, require_form_token
from deputize.interfaces.console.entry_query import format_address
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.paths import is_id
from deputize.interfaces.console.switch_pages import build_off_path
from deputize.interfaces.console.view import build_alert, build_badge, build_time_view, format_line, strip_unprintable
from deputize.operations.gateway import ConsoleSession

_PAGE_SIZE: Final = 25
_MAX_GRANTS: Final = 100
# The stylesheet indents so far.
_MAX_DEPTH: Final = 4
_GRANT_BADGES: Final = {
    "active": ("●", "active", "good"),
    "ended": ("–", "ended", "plain"),
    "revoked": ("⊘", "revoked", "bad"),
}


class AgentPages(ConsolePages):
    """The handlers of /console/agents and of the form that revokes a grant."""

    section_path = AGENTS_PAGE_PATH

    async def list_agents(self, request: Request, session: ConsoleSession) -> Response:
        gateway, after = self._get_gateway(), request.query_params.get("after", "")[:1024]
        now = gateway.clock.now()
        agents = await gateway.agents.list_agents(session.caller, after=after, limit=_PAGE_SIZE)
        before = request.query_params.get("before", "")
        if before and not is_id(before):
            raise MalformedRequest("before must be the id of a grant", details={"field": "before"})
        grants = await gateway.delegations.list_grants(session.caller, before=before or None, limit=_MAX_GRANTS)
        next_path = None
        if len(agents) == _PAGE_SIZE:
            next_path = format_address(AGENTS_PAGE_PATH, {"after": agents[-1]["name"]})
        return self._render_page(
            "agents.html",
            session,
            has_script=True,
            can_switch=session.caller.can_operate,
            agents=[_build_agent(each, now=now) for each in agents],
            grants=build_grant_tree([_build_grant(each, session.caller, now=now) for each in grants]),
            next_path=next_path,
            older_path=(
                format_address(AGENTS_PAGE_PATH, {"before": str(grants[-1]["grant_id"])})
                if len(grants) == _MAX_GRANTS
                else None
            ),
        )

    async def confirm_revocation(self, request: Request, session: ConsoleSession) -> Response:
        return await self._render_revocation(session, str(request.path_params["grant_id"]))

    async def revoke(self, request: Request) -> Response:
        form = await read_form(request, origin=self._console.origin)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        grant_id, reason = str(request.path_params["grant_id"]), form.get("reason", "").strip()[:1000]
        try:
            await self._get_gateway().delegations.revoke_grant(session.caller, grant_id, reason=reason)
        except GrantNotFound:
            raise
        except Problem as problem:
            return await self._render_revocation(session, grant_id, problem, reason)
        return self._redirect(AGENTS_PAGE_PATH)

    async def _render_revocation(
        self, session: ConsoleSession, grant_id: str, problem: Problem | None = None, reason: str = ""
    ) -> Response:
        gateway = self._get_gateway()
        shown = await gateway.delegations.show_grant(session.caller, grant_id)
        grant, ends = _build_grant(shown, session.caller, now=gateway.clock.now()), shown["revoking_ends"]
        derived, waiting = max(ends["grants"] - 1, 0), ends["waiting_calls"]
        waiting_text = "not counted: more than 1,000 calls wait" if waiting is None else _format_count(waiting, "call")
        return self._render_page(
            "confirm.html",
            session,
            status=200 if problem is None else problem.spec.http,
            title="Revoke this grant?",
            facts=[
                ("Agent", " for ".join(grant["agents"]) or "–"),
                ("For", grant["user"]),
                ("Scopes", " ".join(grant["scopes"]) or "none"),
                ("Task", grant["task"] or "–"),
                ("Grant", grant["id"]),
                (
                    "Made from it",
                    _format_count(derived, "grant") + ", each with its token",
                ),
                ("Waiting for approval", waiting_text),
            ],
            notes=[
                "No token of this grant, and of grants made from it, starts a call any more, on any gateway.",
                "Calls that wait for approval under it are withdrawn. It cannot be taken back: delegate again instead.",
            ],
            action=f"{AGENTS_PAGE_PATH}/grants/{grant['id']}/revoke",
            button="Revoke",
            back_path=AGENTS_PAGE_PATH,
            asks_reason=True,
            alert=None if problem is None else build_alert(problem),
            reason=strip_unprintable(reason),
        )


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def build_grant_tree(grants: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order grants so that those made from another one stand below it, newest first, each with its depth.

    One whose parent is on another page stands at the top and says that it was made from one.
    """
    by_id = {each["id"]: each for each in grants}
    children: dict[str | None, list[dict[str, Any]]] = {}
    for each in grants:
        children.setdefault(each["parent"] if each["parent"] in by_id else None, []).append(each)
    tree: list[dict[str, Any]] = []
    # A grant is older than those made from it, so there is no cycle.
    waiting = [(each, 0) for each in reversed(children.get(None, []))]
    while waiting:
        grant, depth = waiting.pop()
        tree.append({**grant, "depth": min(depth, _MAX_DEPTH)})
        waiting += [(each, depth + 1) for each in reversed(children.get(grant["id"], []))]
    return tree


def _build_agent(agent: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    last_call = agent["last_call"]
    return {
        "name": format_line(agent["name"]),
        "off_path": build_off_path("agent", agent["name"]),
        "users": [format_line(each) for each in agent["users"][:5]],
        "grants": agent["active_grants"],
        "is_revoked": agent["revoked"],
        "switch": None if agent["switched_off"] is None else _build_switch(agent["switched_off"], now=now),
        "on_path": format_address(f"{SWITCHES_PAGE_PATH}/on", {"kind": "agent", "value": agent["name"]}),
        "last_call": None
        if last_call is None
        else {
            "time": build_time_view(last_call["time"], now=now),
            "tool": format_line(last_call["tool"] or ""),
            "state": build_state_badge(str(last_call["outcome"] or "running"), is_dry_run=last_call["dry_run"]),
        },
    }


def _build_switch(switch: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    return {
        "by": format_line(switch["by"]),
        "since": build_time_view(switch["since"], now=now),
        "reason": format_line(switch["reason"]),
    }


def _build_grant(grant: Mapping[str, Any], caller: Caller, *, now: datetime) -> dict[str, Any]:
    tools = grant["tools"]
    return {
        "id": str(grant["grant_id"]),
        "user": format_line(grant["user"]),
        "agents": [format_line(each) for each in grant["agents"]],
        "scopes": [format_line(each) for each in grant["scopes"][:10]],
        "tools": None if tools is None else [format_line(each["tool_id"]) for each in tools[:5]],
        "ceiling": format_line(grant["ceiling"] or ""),
        "task": format_line(grant["task"] or ""),
        "state": build_badge(_GRANT_BADGES, str(grant["state"])),
        "is_active": grant["state"] == "active",
        "may_revoke": caller.is_admin or grant["user"] == caller.user,
        "parent": None if grant["parent"] is None else str(grant["parent"]),
        "not_after": build_time_view(grant["not_after"], now=now),
    }
