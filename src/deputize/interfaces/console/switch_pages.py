"""Show the kill switches that are off, and turn a tool, an agent or the tenant off and on again after a question."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.contract.names import to_full_name
from deputize.core.display_text import to_display_text
from deputize.core.errors import AgentUnknown, MalformedRequest, Problem
from deputize.core.settings.urls import SIGN_IN_PATH, SWITCHES_PAGE_PATH
from deputize.interfaces.console.csrf import read_form, require_form_token
from deputize.interfaces.console.entry_query import format_address
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.view import build_alert, build_time_view, format_line, strip_unprintable
from deputize.operations.gateway import ConsoleSession, KillSwitch, SwitchKind, require_full_operator

_MAX_SWITCHES: Final = 500
_MAX_VALUE: Final = 512
_MAX_REASON: Final = 400
_KINDS: Final[Mapping[str, SwitchKind]] = {"tool": "tool", "agent": "agent", "tenant": "tenant"}


class SwitchPages(ConsolePages):
    """The handlers of /console/switches, and of the forms that turn something off and on."""

    section_path = SWITCHES_PAGE_PATH

    async def list_switches(self, request: Request, session: ConsoleSession) -> Response:
        gateway = self._get_gateway()
        switches = await gateway.commands.list_switches(session.caller)
        now = gateway.clock.now()
        return self._render_page(
            "switches.html",
            session,
            has_script=True,
            switches=[build_switch(each, now=now) for each in switches[:_MAX_SWITCHES]],
            more_switches=max(0, len(switches) - _MAX_SWITCHES),
            can_switch=session.caller.can_operate,
        )

    async def confirm_off(self, request: Request, session: ConsoleSession) -> Response:
        require_full_operator(session.caller)
        return self._render_off(session, request.query_params)

    async def confirm_on(self, request: Request, session: ConsoleSession) -> Response:
        require_full_operator(session.caller)
        return await self._render_on(session, request.query_params)

    async def turn_off(self, request: Request) -> Response:
        session, form = await self._read_switch_form(request)
        try:
            await self._set_switch(session, form, off=True)
        except Problem as problem:
            return self._render_off(session, form, problem)
        return self._redirect(SWITCHES_PAGE_PATH)

    async def turn_on(self, request: Request) -> Response:
        session, form = await self._read_switch_form(request)
        confirmed = replace(session, caller=replace(session.caller, confirmation_code=form.get("code", "").strip()))
        try:
            await self._set_switch(confirmed, form, off=False)
        except Problem as problem:
            return await self._render_on(session, form, problem)
        return self._redirect(SWITCHES_PAGE_PATH)

    async def _read_switch_form(self, request: Request) -> tuple[ConsoleSession, dict[str, str]]:
        form = await read_form(request, origin=self._console.origin)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        require_full_operator(session.caller)
        return session, form

    async def _set_switch(self, session: ConsoleSession, form: Mapping[str, str], *, off: bool) -> None:
        kind, value = _KINDS.get(form.get("kind", "")), form.get("value", "").strip()
        if kind is None:
            raise MalformedRequest(f"kind must be one of {', '.join(_KINDS)}", details={"field": "kind"})
        if len(value) > _MAX_VALUE:
            raise MalformedRequest(f"a name has at most {_MAX_VALUE} characters", details={"field": "value"})
        if kind == "tool":
            value = to_full_name(value)
        elif kind == "tenant":
            value = value or session.caller.tenant
        if kind == "agent" and off and value and form.get("unknown") != "1":
            await self._get_gateway().commands.require_known_agent(session.caller, value)
        reason = form.get("reason", "").replace("\r\n", "\n").strip()[:_MAX_REASON]
        await self._get_gateway().commands.set_switch(session.caller, kind, value, off=off, reason=reason)

    def _render_off(
        self, session: ConsoleSession, typed: Mapping[str, str], problem: Problem | None = None
    ) -> Response:
        return self._render_page(
            "switch_off.html",
            session,
            status=200 if problem is None else problem.spec.http,
            kinds=list(_KINDS),
            kind=_KINDS.get(typed.get("kind", ""), "tool"),
            value=strip_unprintable(typed.get("value", "")[:_MAX_VALUE]),
            reason=strip_unprintable(typed.get("reason", "")),
            is_unknown=isinstance(problem, AgentUnknown),
            alert=None if problem is None else build_alert(problem),
        )

    async def _render_on(
        self, session: ConsoleSession, typed: Mapping[str, str], problem: Problem | None = None
    ) -> Response:
        """Ask before a switch is turned on. A development session proves no operator: its terminal shows a code."""
        gateway = self._get_gateway()
        switches = await gateway.commands.list_switches(session.caller)
        key = (typed.get("kind", ""), typed.get("value", ""))
        switch = next((each for each in switches if (each.kind, each.value) == key), None)
        if switch is None:
            raise MalformedRequest(
                "nothing with this name is switched off", advice="Open the list of kill switches, and choose one there."
            )
        rule = None if problem is None else problem.details.get("rule")
        can_sign_in = rule == "operator-sign-in" and self._console.has_sign_in
        query = urlencode({"again": "1", "to": SWITCHES_PAGE_PATH})
        return self._render_page(
            "switch_on.html",
            session,
            status=200 if problem is None else problem.spec.http,
            switch=build_switch(switch, now=gateway.clock.now()),
            kind=switch.kind,
            value=switch.value,
            alert=None if problem is None else build_alert(problem),
            asks_code=rule == "operator-terminal-code",
            sign_in_again_url=f"{self._root}{SIGN_IN_PATH}?{query}" if can_sign_in else None,
        )


def build_off_path(kind: SwitchKind, value: str) -> str:
    """Build the address of the form that turns something off."""
    return format_address(f"{SWITCHES_PAGE_PATH}/off", {"kind": kind, "value": value})


def build_switch(switch: KillSwitch, *, now: datetime) -> dict[str, Any]:
    return {
        "kind": switch.kind,
        "name": format_line(switch.value),
        "by": format_line(switch.by),
        "since": build_time_view(switch.since, now=now),
        "reason": to_display_text(switch.reason, 600),
        "on_path": format_address(f"{SWITCHES_PAGE_PATH}/on", {"kind": switch.kind, "value": switch.value}),
    }
