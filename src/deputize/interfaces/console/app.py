"""Serve the console's pages, where signed-in people decide approval requests and link their accounts at servers.

    /console/tickets          the approval requests that wait for this user
    /console/tickets/{id}     one approval request on one screen, with the forms that decide it
    /console/servers          the user's accounts at MCP servers: link one through its issuer, or unlink it
    /console/sign-in          redirects to the issuer, which returns to /console/callback; /console/sign-out

A signed-in user's session is in a sealed cookie. In development, a code from the terminal opens one approval request
and leaves nothing in the browser: its session is only in that page's forms, where no other program finds it.
`gateway.console_access` knows who is signed in; `gateway.approvals` decides what they may do.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from deputize.core.display_text import to_display_text
from deputize.core.errors import HumanTaskNotFound, MalformedRequest, NoSuchRoute, Problem, SignInFailed
from deputize.core.json_values import run_for_value
from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    CONSOLE_PATH,
    LINK_CALLBACK_PATH,
    SIGN_IN_CALLBACK_PATH,
    SIGN_IN_PATH,
    SIGN_OUT_PATH,
)
from deputize.interfaces.asgi_http import hide_internal_error, read_trace_id
from deputize.interfaces.console import cookies
from deputize.interfaces.console.csrf import SECURITY_HEADERS, read_form, require_form_token
from deputize.interfaces.console.render import STYLESHEET, STYLESHEET_PATH, render_template
from deputize.interfaces.console.view import UNLINK_NOTICES, build_account_view, build_list_view, build_request_view
from deputize.operations.gateway import ConsoleAccess, ConsoleSession, Gateway

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWN_PATHS = re.compile(rf"{APPROVALS_PAGE_PATH}(?:/{_ID.pattern})?|{ACCOUNTS_PAGE_PATH}")
_LEVEL = re.compile(r"[A-Za-z0-9:._/-]{1,255}")
_PAGE_SIZE = 50
_STYLE_CACHE_CONTROL = "public, max-age=31536000, immutable"

Handler = Callable[[Request], Awaitable[Response]]


def build_console_app(get_gateway: Callable[[], Gateway]) -> Starlette:
    """Build the console's application."""
    pages = ConsolePages(get_gateway)
    request_path = f"{APPROVALS_PAGE_PATH}/{{approval_id}}"
    app = Starlette(
        routes=[
            Route(CONSOLE_PATH, pages.show_home),
            Route(STYLESHEET_PATH, pages.serve_style),
            Route(SIGN_IN_PATH, pages.start_sign_in),
            Route(SIGN_IN_CALLBACK_PATH, pages.finish_sign_in),
            Route(SIGN_OUT_PATH, pages.sign_out, methods=["POST"]),
            Route(APPROVALS_PAGE_PATH, pages.list_approval_requests),
            Route(request_path, pages.show_approval_request),
            Route(f"{request_path}/code", pages.submit_code, methods=["POST"]),
            Route(f"{request_path}/approve", pages.approve, methods=["POST"]),
            Route(f"{request_path}/deny", pages.deny, methods=["POST"]),
            Route(ACCOUNTS_PAGE_PATH, pages.list_accounts),
            Route(LINK_CALLBACK_PATH, pages.finish_link),
            Route(f"{ACCOUNTS_PAGE_PATH}/{{server}}/link", pages.confirm_link, methods=["POST"]),
            Route(f"{ACCOUNTS_PAGE_PATH}/{{server}}/unlink", pages.unlink, methods=["POST"]),
        ],
        exception_handlers={
            Problem: pages.handle_problem,
            HTTPException: pages.handle_http_error,
            Exception: pages.handle_unexpected_error,
        },
    )
    # The framework's redirects would use the host that the request names, which may be forged.
    app.router.redirect_slashes = False
    return app


class ConsolePages:
    """The handlers of every page and form. `get_gateway` raises a Problem while no gateway is open."""

    def __init__(self, get_gateway: Callable[[], Gateway]) -> None:
        self._get_gateway = get_gateway

    async def show_home(self, request: Request) -> Response:
        return self._redirect(APPROVALS_PAGE_PATH)

    async def serve_style(self, request: Request) -> Response:
        return Response(
            STYLESHEET, media_type="text/css", headers={**SECURITY_HEADERS, "cache-control": _STYLE_CACHE_CONTROL}
        )

    async def start_sign_in(self, request: Request) -> Response:
        console, query = self._console, request.query_params
        target = _choose_own_path(query.get("to", ""))
        if not console.has_sign_in:
            raise SignInFailed(
                "sign-in is not configured for this console",
                advice="In development, open the URL of an approval request and enter the code from the terminal. "
                "Otherwise, set issuer and client_id under [console] in deputize.toml.",
            )
        level = query.get("level", "")
        level = level if _LEVEL.fullmatch(level) else ""
        url, sign_in_state = await console.begin_sign_in(
            return_to=target, force_login=query.get("again") == "1", level=level
        )
        response = RedirectResponse(url, status_code=303, headers=SECURITY_HEADERS)
        cookies.set_cookie(
            response, cookies.SIGN_IN, sign_in_state, secure=console.is_secure, seconds=console.sign_in_seconds
        )
        return response

    async def finish_sign_in(self, request: Request) -> Response:
        console = self._console
        sign_in_state = cookies.read_cookie(request.cookies, cookies.SIGN_IN, secure=console.is_secure)
        session, target = await console.finish_sign_in(sign_in_state, dict(request.query_params))
        response = self._redirect(_choose_own_path(target))
        seconds = self._get_gateway().settings.console.session_seconds
        cookies.set_cookie(response, cookies.SESSION, session, secure=console.is_secure, seconds=seconds)
        cookies.delete_cookie(response, cookies.SIGN_IN, secure=console.is_secure)
        return response

    async def sign_out(self, request: Request) -> Response:
        console = self._console
        form = await read_form(request, origin=console.origin)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        response = self._render_message(
            "Signed out",
            "You are signed out of this console. You may still be signed in at your identity provider.",
            sign_in_path=APPROVALS_PAGE_PATH,
        )
        cookies.delete_cookie(response, cookies.SESSION, secure=console.is_secure)
        return response

    async def list_approval_requests(self, request: Request) -> Response:
        gateway = self._get_gateway()
        try:
            session = await self._load_session(request)
        except SignInFailed:
            return self._redirect_to_sign_in(APPROVALS_PAGE_PATH)
        before = request.query_params.get("before")
        if before is not None and not _ID.fullmatch(before):
            raise MalformedRequest("before must be the id of an approval request", details={"field": "before"})
        approval_requests = await gateway.approvals.list_requests(session.caller, before=before, limit=_PAGE_SIZE)
        last_id = approval_requests[-1]["ticket_id"] if len(approval_requests) == _PAGE_SIZE else None
        older_url = None if last_id is None else f"{self._root}{APPROVALS_PAGE_PATH}?before={last_id}"
        now = gateway.clock.now()
        accounts = await gateway.account_links.list_accounts(session.caller)
        return await run_for_value(
            approval_requests,
            lambda: self._render_page(
                "approval_requests.html",
                session,
                approval_requests=build_list_view(approval_requests, now=now),
                older_url=older_url,
                has_accounts=bool(accounts),
            ),
        )

    async def show_approval_request(self, request: Request) -> Response:
        approval_id = _parse_approval_id(request)
        try:
            session = await self._load_session(request)
        except SignInFailed:
            if self._console.accepts_codes:
                return self._render_code_form(approval_id)
            return self._redirect_to_sign_in(f"{APPROVALS_PAGE_PATH}/{approval_id}")
        return await self._render_approval_request(session, approval_id)

    async def submit_code(self, request: Request) -> Response:
        console, approval_id = self._console, _parse_approval_id(request)
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
        console, approval_id = self._console, _parse_approval_id(request)
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

    async def list_accounts(self, request: Request) -> Response:
        try:
            session = await self._load_session(request)
        except SignInFailed:
            return self._redirect_to_sign_in(ACCOUNTS_PAGE_PATH)
        gateway = self._get_gateway()
        accounts = await gateway.account_links.list_accounts(session.caller)
        now = gateway.clock.now()
        return self._render_page(
            "servers.html",
            session,
            accounts=[build_account_view(each, now=now) for each in accounts],
            notice=UNLINK_NOTICES.get(request.query_params.get("unlinked", "")),
        )

    async def confirm_link(self, request: Request) -> Response:
        """Show where the user is about to sign in. A page with a link, because our forms may only lead to us."""
        session, server = await self._read_server_form(request)
        link_redirect = await self._get_gateway().account_links.begin_link(session.caller, server)
        scopes = [to_display_text(each, 120) for each in link_redirect.scopes]
        return self._render_page(
            "link.html",
            session,
            server=link_redirect.server,
            host=to_display_text(link_redirect.host, 200),
            url=link_redirect.url,
            scopes=scopes,
        )

    async def finish_link(self, request: Request) -> Response:
        session = await self._load_session(request)
        await self._get_gateway().account_links.finish_link(session.caller, dict(request.query_params))
        return self._redirect(ACCOUNTS_PAGE_PATH)

    async def unlink(self, request: Request) -> Response:
        session, server = await self._read_server_form(request)
        state = await self._get_gateway().account_links.unlink(session.caller, server)
        return self._redirect(f"{ACCOUNTS_PAGE_PATH}?{urlencode({'unlinked': state})}")

    async def _read_server_form(self, request: Request) -> tuple[ConsoleSession, str]:
        """Read the form of a server: the session that sent it and the server's name."""
        form = await read_form(request, origin=self._console.origin)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        return session, str(request.path_params["server"])

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
        return await run_for_value(
            approval_request,
            lambda: self._render_page(
                "approval_request.html",
                session,
                status=200 if problem is None else problem.spec.http,
                approval_request=build_request_view(approval_request, now=now),
                sign_in_again_url=(
                    None if code_session else self._build_sign_in_again_url(approval_id, approval_request, rule)
                ),
                alert=None if problem is None else _build_alert(problem),
                reason=strip_unprintable(reason),
                code_session=code_session,
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

    async def _load_session(self, request: Request) -> ConsoleSession:
        console = self._console
        return await console.load_session(
            cookies.read_cookie(request.cookies, cookies.SESSION, secure=console.is_secure)
        )

    def _render_code_form(self, approval_id: str, problem: Problem | None = None) -> Response:
        console = self._console
        sign_in_url = f"{self._root}{SIGN_IN_PATH}?{urlencode({'to': f'{APPROVALS_PAGE_PATH}/{approval_id}'})}"
        return self._render_page(
            "code.html",
            None,
            status=200 if problem is None else problem.spec.http,
            approval_id=approval_id,
            alert=None if problem is None else _build_alert(problem),
            sign_in_url=sign_in_url if console.has_sign_in else None,
        )

    def _redirect_to_sign_in(self, target: str) -> Response:
        return self._redirect(f"{SIGN_IN_PATH}?{urlencode({'to': target})}")

    def _redirect(self, path: str) -> Response:
        return RedirectResponse(self._root + path, status_code=303, headers=SECURITY_HEADERS)

    def _render_page(
        self, template: str, session: ConsoleSession | None, *, status: int = 200, **variables: Any
    ) -> Response:
        user = "" if session is None else to_display_text(session.caller.user, 120)
        token = "" if session is None else session.form_token
        can_sign_out = session is not None and session.approval_id is None
        page = render_template(
            template, root=self._root, user=user, form_token=token, can_sign_out=can_sign_out, **variables
        )
        return HTMLResponse(page, status_code=status, headers=SECURITY_HEADERS)

    def _render_message(
        self, title: str, *paragraphs: str, sign_in_path: str | None = None, trace: str = "", status: int = 200
    ) -> Response:
        link = None if sign_in_path is None else {"href": self._root + sign_in_path, "text": "Sign in"}
        return self._render_page(
            "message.html", None, status=status, title=title, paragraphs=paragraphs, link=link, trace=trace
        )

    async def handle_problem(self, request: Request, problem: Exception) -> Response:
        """Render a problem as a page."""
        assert isinstance(problem, Problem)
        sign_in_path = None
        if problem.spec.http == 401 and self._has_sign_in:
            sign_in_path = f"{SIGN_IN_PATH}?{urlencode({'to': _choose_own_path(_strip_form_action(request.url.path))})}"
        return self._render_message(
            problem.spec.title,
            to_display_text(problem.message[:1].upper() + problem.message[1:], 600) + ".",
            to_display_text(problem.advice, 600),
            sign_in_path=sign_in_path,
            trace=f"{problem.spec.e_number} · trace {read_trace_id(request.scope)}",
            status=problem.spec.http,
        )

    async def handle_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return self._render_message("Page not found", "There is no page at this address.", status=404)
        return self._render_message(
            "Method not allowed", "Open the page again and use its buttons.", status=error.status_code
        )

    async def handle_unexpected_error(self, request: Request, error: Exception) -> Response:
        return await self.handle_problem(request, hide_internal_error(error, read_trace_id(request.scope)))

    @property
    def _console(self) -> ConsoleAccess:
        return self._get_gateway().console_access

    @property
    def _root(self) -> str:
        """The path prefix under which a reverse proxy serves this gateway."""
        try:
            return urlsplit(self._console.base_url).path
        except Problem:
            return ""

    @property
    def _has_sign_in(self) -> bool:
        try:
            return self._console.has_sign_in
        except Problem:
            return False


def strip_unprintable(text: str) -> str:
    """Remove characters that a user cannot type, before a text goes back into their form."""
    return "".join(each for each in text if each.isprintable() or each == "\n")[:2000]


def _build_alert(problem: Problem) -> dict[str, Any]:
    return {
        "message": to_display_text(problem.message[:1].upper() + problem.message[1:], 600) + ".",
        "advice": to_display_text(problem.advice, 600),
    }


def _parse_approval_id(request: Request) -> str:
    approval_id = str(request.path_params["approval_id"])
    if not _ID.fullmatch(approval_id):
        raise HumanTaskNotFound("there is no approval request with this id, or you may not see it")
    return approval_id


def _choose_own_path(path: str) -> str:
    """Choose the page after a sign-in: only one of our own, to prevent open redirects."""
    return path if _OWN_PATHS.fullmatch(path) else APPROVALS_PAGE_PATH


def _strip_form_action(path: str) -> str:
    """Return the path of the page that a form is on, since a form's own path has no page."""
    return re.sub(r"/(?:code|approve|deny)$|/[^/]+/(?:link|unlink)$|/callback$", "", path)
