"""Backtest a draft of the policies: show which recorded calls it would decide differently. Changes nothing."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.display_text import to_display_text
from deputize.core.errors import MalformedRequest, PolicyInvalid, Problem
from deputize.core.settings.urls import POLICIES_PAGE_PATH
from deputize.interfaces.console.call_view import DECISION_BADGES
from deputize.interfaces.console.csrf import read_form, require_form_token
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.view import build_alert, build_badge, format_line, remove_unseen
from deputize.operations.gateway import ConsoleSession, PolicyFile, require_admin

# A set with more text is backtested by the command.
_MAX_FORM_BYTES: Final = 1024 * 1024
_MAX_PATH: Final = 200
_MAX_ROWS: Final = 100
# How long a person waits for a page. A longer period, or more calls, is for the command, which shows its progress.
_MAX_SECONDS: Final = 20.0
_DAYS: Final = {"1": "the last day", "7": "the last 7 days", "30": "the last 30 days"}
_NEW_FILE: Final = "draft.cedar"


class DraftPages(ConsolePages):
    """The handlers of /console/policies/backtest."""

    section_path = POLICIES_PAGE_PATH

    async def show_form(self, request: Request, session: ConsoleSession) -> Response:
        """Show the form, with a file of the active set, a draft or a proposal if the address names one."""
        require_admin(session.caller)
        query = request.query_params
        policies = await self._get_gateway().explanations.show_active_policies(session.caller)
        files = {each["path"]: each["text"] for each in policies["files"]}
        path = query.get("file", next(iter(files), _NEW_FILE))
        typed = {
            "file": path,
            "text": query.get("text", files.get(path, "")),
            "proposal": query.get("proposal", ""),
            "days": "7",
        }
        return self._render_form(session, policies, typed)

    async def backtest(self, request: Request) -> Response:
        form = await read_form(request, origin=self._console.origin, max_bytes=_MAX_FORM_BYTES)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        require_admin(session.caller)
        policies = await self._get_gateway().explanations.show_active_policies(session.caller)
        try:
            report = await self._run_backtest(session, build_draft(policies, form), form.get("days", ""))
        except Problem as problem:
            return self._render_form(session, policies, form, problem)
        return self._render_form(session, policies, form, report=report)

    async def _run_backtest(
        self, session: ConsoleSession, files: Sequence[PolicyFile], days: str
    ) -> dict[str, Any] | None:
        """Return the report; None if it takes longer than a page may."""
        if days not in _DAYS:
            raise MalformedRequest(f"days must be one of {', '.join(_DAYS)}", details={"field": "days"})
        gateway = self._get_gateway()
        ends_at = gateway.clock.monotonic() + _MAX_SECONDS
        since = gateway.clock.now() - timedelta(days=int(days))
        async with aclosing(await gateway.backtests.start_backtest(session.caller, files, since)) as lines:
            async for line in lines:
                if "result" in line:
                    return _build_report(line["result"])
                if gateway.clock.monotonic() > ends_at:
                    break
        return None

    def _render_form(
        self,
        session: ConsoleSession,
        policies: Mapping[str, Any],
        typed: Mapping[str, str],
        problem: Problem | None = None,
        **result: Any,
    ) -> Response:
        errors = problem.details.get("errors", ()) if isinstance(problem, PolicyInvalid) else ()
        return self._render_page(
            "draft.html",
            session,
            status=200 if problem is None else problem.spec.http,
            files=[each["path"] for each in policies["files"]],
            proposals=[
                {"digest": each["digest"], "by": format_line(each["proposed_by"])} for each in policies["proposals"]
            ],
            file=to_display_text(typed.get("file", ""), _MAX_PATH),
            text=remove_unseen(typed.get("text", "")),
            proposal=typed.get("proposal", ""),
            days=typed.get("days", ""),
            periods=_DAYS,
            alert=None if problem is None else build_alert(problem),
            errors=_build_issues(errors),
            is_answer=bool(result),
            report=result.get("report"),
        )


def build_draft(policies: Mapping[str, Any], form: Mapping[str, str]) -> tuple[PolicyFile, ...]:
    """Build the files of a draft: those of a proposal, or the active ones with one that was typed."""
    if digest := form.get("proposal", ""):
        proposal = next((each for each in policies["proposals"] if each["digest"] == digest), None)
        if proposal is None:
            raise MalformedRequest("this proposal is no longer open", details={"field": "proposal"})
        return tuple(PolicyFile(path=each["path"], text=each["text"]) for each in proposal["files"])
    path = form.get("file", "").strip()
    if not 0 < len(path) <= _MAX_PATH or not path.isprintable():
        raise MalformedRequest(f"file must be a name of 1 to {_MAX_PATH} characters", details={"field": "file"})
    files = {each["path"]: each["text"] for each in policies["files"]}
    files[path] = remove_unseen(form.get("text", ""))
    return tuple(PolicyFile(path=name, text=text) for name, text in files.items())


def _build_report(result: Mapping[str, Any]) -> dict[str, Any]:
    changes, unknown = result["changes"], result["cannot_tell"]
    return {
        **{
            name: f"{result[name]:,}"
            for name in ("calls", "changed", "looser", "stricter", "asked_of_others", "undetermined", "unrecorded")
        },
        "is_same": not result["changed"],
        "mismatches": _build_issues(result["mismatches"]),
        "changes": [
            {
                **_build_subject(each),
                "is_looser": _get_strictness(each["after"]) < _get_strictness(each["before"]),
                "before": _build_answer(each["before"]),
                "after": _build_answer(each["after"]),
            }
            for each in changes[:_MAX_ROWS]
        ],
        "more_changes": max(0, len(changes) - _MAX_ROWS),
        "unknown": [
            {**_build_subject(each), "missing": [format_line(name) for name in each["missing"]]}
            for each in unknown[:_MAX_ROWS]
        ],
    }


def _build_issues(issues: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [
        {"where": format_line(f"{each['file']}:{each['line']}"), "message": format_line(each["message"])}
        for each in issues[:_MAX_ROWS]
    ]


def _get_strictness(answer: Mapping[str, Any]) -> int:
    return ("allow", "ask", "deny").index(answer["behavior"])


def _build_subject(count: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "calls": f"{count['calls']:,}",
        "tool": format_line(count["tool"]),
        "user": format_line(count["user"]),
        "agent": format_line(count["agents"][0]) if count["agents"] else "",
        "example": count["example"],
    }


def _build_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "badge": build_badge(DECISION_BADGES, str(answer["behavior"])),
        "rules": [format_line(f"{each['id']} ({each['where']})" if each["where"] else each["id"])
                  for each in answer["rules"][:5]],
    }  # fmt: skip
