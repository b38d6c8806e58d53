"""Show the active policies with how often each rule decided, and simulate a call: what they decide of it, and why."""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from deputize.core.display_text import to_display_text
from deputize.core.errors import MalformedRequest, Problem
from deputize.core.settings.urls import POLICIES_PAGE_PATH
from deputize.interfaces.console.call_view import DECISION_BADGES
from deputize.interfaces.console.csrf import read_form, require_form_token
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.view import (
    build_alert,
    build_badge,
    build_time_view,
    format_line,
    remove_unseen,
    to_display_block,
)
from deputize.operations.gateway import ConsoleSession, require_admin

_MAX_RULES = 500
_BADGES = {
    "permit": ("✓", "allows", "good"),
    "ask": ("●", "asks", "pending"),
    "forbid": ("⊘", "denies", "bad"),
}


_MAX_ITEMS: Final = 50
_CASE_FIELDS: Final = ("tool", "user", "agents", "groups", "scopes", "arguments")


class PolicyPages(ConsolePages):
    """The handlers of /console/policies and of the form that simulates a call."""

    section_path = POLICIES_PAGE_PATH

    async def show_simulator(self, request: Request, session: ConsoleSession) -> Response:
        require_admin(session.caller)
        return self._render_simulator(session, {"arguments": "{}", **request.query_params})

    async def simulate(self, request: Request) -> Response:
        form = await read_form(request, origin=self._console.origin)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        require_admin(session.caller)
        try:
            decision = await self._get_gateway().explanations.explain_case(session.caller, _build_case(form))
        except Problem as problem:
            return self._render_simulator(session, form, problem)
        return self._render_simulator(session, form, decision=_build_decision(decision))

    def _render_simulator(
        self,
        session: ConsoleSession,
        typed: Mapping[str, str],
        problem: Problem | None = None,
        decision: dict[str, Any] | None = None,
    ) -> Response:
        return self._render_page(
            "simulate.html",
            session,
            status=200 if problem is None else problem.spec.http,
            typed={name: remove_unseen(typed.get(name, "")) for name in _CASE_FIELDS},
            decision=decision,
            alert=None if problem is None else build_alert(problem),
        )

    async def show_policies(self, request: Request, session: ConsoleSession) -> Response:
        gateway = self._get_gateway()
        policies = await gateway.explanations.show_active_policies(session.caller)
        usage = await gateway.explanations.report_usage(session.caller)
        calls = {each["id"]: each["calls"] for each in usage["rules"]}
        now = gateway.clock.now()
        rules = [
            {
                "id": format_line(each["id"]),
                "calls": f"{calls.get(each['id'], 0):,}",
                "where": format_line(each["where"]),
                "reason": to_display_text(str(each["reason"] or ""), 600),
                "effect": build_badge(_BADGES, "ask" if each["requires_approval"] else each["effect"]),
                "groups": [format_line(group) for group in (each["approval_terms"] or {}).get("groups", ())],
            }
            for each in policies["rules"][:_MAX_RULES]
        ]
        return self._render_page(
            "policies.html",
            session,
            has_script=True,
            rules=rules,
            more_rules=len(policies["rules"]) - len(rules),
            files=[
                {"path": format_line(each["path"]), "text": to_display_block(each["text"])}
                for each in policies["files"][:50]
            ],
            digest=format_line(policies["digest"]),
            is_default=policies["default"],
            put_by=format_line(policies["put_by"] or ""),
            put_at=build_time_view(policies["put_at"], now=now),
            usage={
                "calls": f"{usage['calls']:,}",
                "since": build_time_view(usage["since"], now=now),
                "is_complete": usage["is_complete"],
            },
            proposals=len(policies["proposals"]),
            may_try=session.caller.is_admin,
        )


def _build_case(form: Mapping[str, str]) -> dict[str, Any]:
    """Build a hypothetical call from what was typed."""
    typed = {name: remove_unseen(form.get(name, "")).strip() for name in _CASE_FIELDS}
    if not typed["user"]:
        raise MalformedRequest("the user is missing", details={"field": "user"})
    try:
        arguments = orjson.loads(typed["arguments"] or "{}")
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"the arguments are no JSON: {error}", details={"field": "arguments"}) from None
    if not isinstance(arguments, dict):
        raise MalformedRequest("the arguments must be a JSON object", details={"field": "arguments"})
    return {
        "tool": typed["tool"],
        "caller": {
            "user": typed["user"],
            **{name: typed[name].split() for name in ("agents", "groups", "scopes")},
        },
        "arguments": arguments,
    }


def _build_decision(decision: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "badge": build_badge(DECISION_BADGES, str(decision["behavior"])),
        "tool": format_line(f"{decision['tool']['name']} {decision['tool']['version']}"),
        "reason": to_display_text(str(decision["reason"] or ""), 600),
        "suggestion": to_display_text(str(decision["suggestion"] or ""), 600),
        "errors": [to_display_text(str(each), 600) for each in decision["errors"][:_MAX_ITEMS]],
        "rules": [
            {
                "id": format_line(each["id"]),
                "where": format_line(each["where"]),
                "reason": to_display_text(str(each["reason"] or ""), 600),
            }
            for each in decision["rules"][:_MAX_ITEMS]
        ],
        "groups": list(dict.fromkeys(format_line(group) for each in decision["demands"] for group in each["groups"])),
        "allowed_if": [to_display_text(str(each), 600) for each in decision["allowed_if"][:_MAX_ITEMS]],
    }
