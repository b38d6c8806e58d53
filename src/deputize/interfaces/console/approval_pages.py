"""Show the approval requests that wait for a person, and take their decisions."""

from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.errors import HumanTaskNotFound, MalformedRequest, NoSuchRoute, Problem, SignInFailed
from deputize.core.json_values import run_for_value
from deputize.core.settings.urls import APPROVALS_PAGE_PATH, SIGN_IN_PATH
from deputize.interfaces.console.csrf import read_form, require_form_token
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.paths import is_id, parse_approval_id
from deputize.interfaces.console.view import (
    build_alert,
    build_list_view,
    build_request_view,
    is_ongoing,
    strip_unprintable,
)
from deputize.operations.gateway import ConsoleSession

_PAGE_SIZE = 50


class ApprovalPages(ConsolePages):
    """The handlers of /console/approvals and of the forms of an approval request."""

    section_path = APPROVALS_PAGE_PATH

    async def list_approval_requests(self, request: Request) -> Response:
        gateway = self._get_gateway()
        try:
            session = await self._load_session(request)
        except SignInFailed:
            return self._redirect_to_sign_in(APPROVALS_PAGE_PATH)
        before = request.query_params.get("before")
        if before is not None and not is_id(before):
            raise MalformedRequest("before must be the id of an approval request", details={"field": "before"})
        approval_requests = await gateway.approvals.list_requests(
            session.caller, before=before, limit=_PAGE_SIZE, with_arguments=True
        )
        last_id = approval_requests[-1]["approval_id"] if len(approval_requests) == _PAGE_SIZE else None
        older_url = None if last_id is None else f"{self._root}{APPROVALS_PAGE_PATH}?before={last_id}"
        now = gateway.clock.now()
        accounts = await gateway.account_links.list_accounts(session.caller)
        return await run_for_value(
            approval_requests,
            lambda: self._render_page(
                "approval_requests.html",
                session,
                has_script=True,
                approval_requests=build_list_view(approval_requests, now=now),
                older_url=older_url,
                has_accounts=bool(accounts),
            ),
        )

    async def show_approval_request(self, request: Request) -> Response:
        approval_id = parse_approval_id(request)
        try:
            session = await self._load_session(request)
        except SignInFailed:
            if self._console.accepts_codes:
                return self._render_code_form(approval_id)
            return self._redirect_to_sign_in(f"{APPROVALS_PAGE_PATH}/{approval_id}")
        return await self._render_approval_request(session, approval_id)

    async def submit_code(self, request: Request) -> Response:
        console, approval_id = self._console, parse_approval_id(request)
        form = await read_form(request, origin=console.origin)
        try:
            code_session = await console.open_code_session(approval_id, form.get("code", ""))
        except NoSuchRoute:
            raise
        except Problem as problem:
            return self._render_code_form(approval_id, problem)
        return await self._render_approval_request(
            await console.load_code_session(code_session, approval_id), approval_id, code_session=code_session
        )

    async def approve(self, request: Request) -> Response:
        return await self._decide(request, "approve")

    async def deny(self, request: Request) -> Response:
        return await self._decide(request, "deny")

    async def _decide(self, request: Request, action: str) -> Response:
        """Approve or deny the version of the request that the page showed; show a refusal above the request."""
        console, approval_id = self._console, parse_approval_id(request)
        form = await read_form(request, origin=console.origin)
        code_session = form.get("session", "")
        session = await (
            console.load_code_session(code_session, approval_id) if code_session else self._load_session(request)
        )
        require_form_token(form.get("form_token"), session.form_token)
        binding, reason = form.get("binding", ""), form.get("reason", "").replace("\r\n", "\n").strip()
        if not binding:
            raise MalformedRequest("the form has no binding, so nothing was decided", details={"field": "binding"})
        approvals = self._get_gateway().approvals
        try:
            if action == "approve":
                await approvals.approve(session.caller, approval_id, reason=reason, binding=binding)
            else:
                await approvals.deny(session.caller, approval_id, reason=reason, binding=binding)
        except HumanTaskNotFound:
            raise
        except Problem as problem:
            return await self._render_approval_request(
                session, approval_id, code_session=code_session, problem=problem, reason=reason
            )
        if code_session:
            return await self._render_approval_request(session, approval_id, code_session=code_session)
        return self._redirect(f"{APPROVALS_PAGE_PATH}/{approval_id}")

    async def _render_approval_request(
        self,
        session: ConsoleSession,
        approval_id: str,
        *,
        code_session: str = "",
        problem: Problem | None = None,
        reason: str = "",
    ) -> Response:
        gateway = self._get_gateway()
        approval_request = await gateway.approvals.get_request(session.caller, approval_id)
        now = gateway.clock.now()
        rule = approval_request["why_not_rule"] if problem is None else problem.details.get("rule")
        # A page with a code's session is in no address, so it cannot be read again.
        is_followed = is_ongoing(approval_request) and problem is None and not code_session
        return await run_for_value(
            approval_request,
            lambda: self._render_page(
                "approval_request.html",
                session,
                status=200 if problem is None else problem.spec.http,
                has_script=is_followed,
                followed_path=f"{APPROVALS_PAGE_PATH}/{approval_id}" if is_followed else "",
                is_followed=is_followed,
                approval_request=build_request_view(approval_request, now=now),
                sign_in_again_url=(
                    None if code_session else self._build_sign_in_again_url(approval_id, approval_request, rule)
                ),
                alert=None if problem is None else build_alert(problem),
                reason=strip_unprintable(reason),
                code_session=code_session,
                # A session that decides nothing, as that of a link, needs the code from the terminal.
                needs_code=self._console.accepts_codes and not code_session and not session.caller.console,
            ),
        )

    def _build_sign_in_again_url(self, approval_id: str, approval_request: dict[str, Any], rule: object) -> str | None:
        """Build the URL of a fresh or stronger sign-in; None if that is not what is missing."""
        if rule not in ("fresh-sign-in", "step-up") or not self._console.has_sign_in:
            return None
        level = next((demand["step_up"] for demand in approval_request["demands"] if demand["step_up"]), "")
        query = {"again": "1", "to": f"{APPROVALS_PAGE_PATH}/{approval_id}"} | (
            {"level": level} if rule == "step-up" else {}
        )
        return f"{self._root}{SIGN_IN_PATH}?{urlencode(query)}"

    def _render_code_form(self, approval_id: str, problem: Problem | None = None) -> Response:
        console = self._console
        sign_in_url = f"{self._root}{SIGN_IN_PATH}?{urlencode({'to': f'{APPROVALS_PAGE_PATH}/{approval_id}'})}"
        return self._render_page(
            "code.html",
            None,
            status=200 if problem is None else problem.spec.http,
            approval_id=approval_id,
            alert=None if problem is None else build_alert(problem),
            sign_in_url=sign_in_url if console.has_sign_in else None,
        )
