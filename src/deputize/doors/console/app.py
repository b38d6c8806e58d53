"""The console: a few pages, signed in to, where people see what waits for them and say yes or no to it.

    /console/tickets          what waits for me
    /console/tickets/{id}     one of them, on one screen, with the forms that decide it
    /console/servers          my accounts at MCP servers: link one, and be sent there and back; unlink it
    /console/sign-in          to the issuer and back by /console/callback; /console/sign-out

Where people sign in, a sealed cookie says who they are. A code of the terminal opens one ticket in development, and
leaves nothing in the browser: what it opened travels in the forms of that page, where no other program finds it.
Above: `doors/asgi.py`. Below: `gateway.console` knows who is there, `gateway.approvals` what they may do.
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

from deputize.core.errors import Malformed, NoSuchRoute, Problem, SignInFailed, TicketNotFound
from deputize.core.plain import plain
from deputize.doors.console import cookies
from deputize.doors.console.guard import HEADERS, read_form, require_form_token
from deputize.doors.console.render import STYLE, STYLE_NAME, render
from deputize.doors.console.view import account_view, list_view, ticket_view
from deputize.doors.wire import hide, trace_id_of
from deputize.govern.identity.sessions import Session
from deputize.govern.identity.sign_in import BEGUN_SECONDS
from deputize.lifecycle.console import CALLBACK, Console
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.servers.links import BACK, PAGE

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OURS = re.compile(rf"/console/tickets(?:/{_ID.pattern})?|{PAGE}")
_LEVEL = re.compile(r"[A-Za-z0-9:._/-]{1,255}")
_PER_PAGE = 50
_KEEP_STYLE = "public, max-age=31536000, immutable"
_HOME = "/console/tickets"

Handler = Callable[[Request], Awaitable[Response]]


def console_app(gateway: Callable[[], Gateway]) -> Starlette:
    pages = Pages(gateway)
    one = f"{_HOME}/{{ticket_id}}"
    app = Starlette(
        routes=[
            Route("/console", pages.home),
            Route(f"/console/{STYLE_NAME}", pages.style),
            Route("/console/sign-in", pages.sign_in),
            Route(CALLBACK, pages.callback),
            Route("/console/sign-out", pages.sign_out, methods=["POST"]),
            Route(_HOME, pages.tickets),
            Route(one, pages.ticket),
            Route(f"{one}/code", pages.code, methods=["POST"]),
            Route(f"{one}/approve", pages.approve, methods=["POST"]),
            Route(f"{one}/deny", pages.deny, methods=["POST"]),
            Route(PAGE, pages.servers),
            Route(BACK, pages.linked),
            Route(f"{PAGE}/{{server}}/link", pages.link, methods=["POST"]),
            Route(f"{PAGE}/{{server}}/unlink", pages.unlink, methods=["POST"]),
        ],
        exception_handlers={Problem: pages.problem, HTTPException: pages.unrouted, Exception: pages.unexpected},
    )
    # The framework would send people to whatever host their request names.
    app.router.redirect_slashes = False
    return app


class Pages:
    """Every page and every form. One object, so that each knows the gateway of the moment."""

    def __init__(self, gateway: Callable[[], Gateway]) -> None:
        self._gateway = gateway

    async def home(self, request: Request) -> Response:
        return self._go(_HOME)

    async def style(self, request: Request) -> Response:
        return Response(STYLE, media_type="text/css", headers={**HEADERS, "cache-control": _KEEP_STYLE})

    async def sign_in(self, request: Request) -> Response:
        console, query = self._console, request.query_params
        to = _own_path(query.get("to", ""))
        if not console.has_sign_in:
            raise SignInFailed(
                "nobody can sign in here",
                advice="In development, open the address of a ticket and type the code that the terminal shows for it. "
                "Elsewhere, whoever runs this gateway must set issuer and client_id under [console].",
            )
        level = query.get("level", "")
        level = level if _LEVEL.fullmatch(level) else ""
        url, begun = await console.begin(to=to, again=query.get("again") == "1", level=level)
        response = RedirectResponse(url, status_code=303, headers=HEADERS)
        cookies.keep(response, cookies.BEGUN, begun, secure=console.secure, seconds=BEGUN_SECONDS)
        return response

    async def callback(self, request: Request) -> Response:
        console = self._console
        kept = cookies.kept(request.cookies, cookies.BEGUN, secure=console.secure)
        session, to = await console.finish(kept, dict(request.query_params))
        response = self._go(_own_path(to))
        seconds = self._gateway().settings.console.session_seconds
        cookies.keep(response, cookies.SESSION, session, secure=console.secure, seconds=seconds)
        cookies.forget(response, cookies.BEGUN, secure=console.secure)
        return response

    async def sign_out(self, request: Request) -> Response:
        console = self._console
        form = await read_form(request, origin=console.origin)
        session = await self._signed_in(request)
        require_form_token(form.get("form_token"), session.form_token)
        response = self._told(
            "Signed out", "You are signed out here. Your identity provider may still know you.", again=_HOME
        )
        cookies.forget(response, cookies.SESSION, secure=console.secure)
        return response

    async def tickets(self, request: Request) -> Response:
        gateway = self._gateway()
        try:
            session = await self._signed_in(request)
        except SignInFailed:
            return self._to_sign_in(_HOME)
        before = request.query_params.get("before")
        if before is not None and not _ID.fullmatch(before):
            raise Malformed("the address names no ticket to begin at")
        found = await gateway.approvals.page(session.caller, before=before, limit=_PER_PAGE)
        last = found[-1]["ticket_id"] if len(found) == _PER_PAGE else None
        older = None if last is None else f"{self._root}{_HOME}?before={last}"
        now = gateway.lifecycle.rooms.clock.now()
        accounts = await gateway.linking.listed(session.caller)
        return self._page(
            "tickets.html", session, tickets=list_view(found, now=now), older=older, accounts=bool(accounts)
        )  # fmt: skip

    async def ticket(self, request: Request) -> Response:
        ticket_id = _ticket_id(request)
        try:
            session = await self._signed_in(request)
        except SignInFailed:
            if self._console.takes_codes:
                return self._ask_for_code(ticket_id)
            return self._to_sign_in(f"{_HOME}/{ticket_id}")
        return await self._ticket_page(session, ticket_id)

    async def code(self, request: Request) -> Response:
        console, ticket_id = self._console, _ticket_id(request)
        form = await read_form(request, origin=console.origin)
        try:
            opened = await console.by_code(ticket_id, form.get("code", ""))
        except NoSuchRoute:
            raise
        except Problem as problem:
            return self._ask_for_code(ticket_id, problem)
        return await self._ticket_page(await console.by_ticket(opened, ticket_id), ticket_id, opened=opened)

    async def approve(self, request: Request) -> Response:
        return await self._decide(request, "approve")

    async def deny(self, request: Request) -> Response:
        return await self._decide(request, "deny")

    async def _decide(self, request: Request, word: str) -> Response:
        """Says yes or no for whoever is there, about what they saw; whatever hinders it is told above the ticket."""
        console, ticket_id = self._console, _ticket_id(request)
        form = await read_form(request, origin=console.origin)
        opened = form.get("session", "")
        session = await (console.by_ticket(opened, ticket_id) if opened else self._signed_in(request))
        require_form_token(form.get("form_token"), session.form_token)
        binding, reason = form.get("binding", ""), form.get("reason", "").replace("\r\n", "\n").strip()
        if not binding:
            raise Malformed("the form does not say what was seen, so nothing was decided")
        approvals = self._gateway().approvals
        try:
            if word == "approve":
                await approvals.approve(session.caller, ticket_id, reason=reason, binding=binding)
            else:
                await approvals.deny(session.caller, ticket_id, reason=reason, binding=binding)
        except TicketNotFound:
            raise
        except Problem as problem:
            return await self._ticket_page(session, ticket_id, opened=opened, problem=problem, typed=reason)
        if opened:
            return await self._ticket_page(session, ticket_id, opened=opened)
        return self._go(f"{_HOME}/{ticket_id}")

    async def servers(self, request: Request) -> Response:
        try:
            session = await self._signed_in(request)
        except SignInFailed:
            return self._to_sign_in(PAGE)
        gateway = self._gateway()
        found = await gateway.linking.listed(session.caller)
        now = gateway.lifecycle.rooms.clock.now()
        return self._page("servers.html", session, servers=[account_view(each, now=now) for each in found])

    async def link(self, request: Request) -> Response:
        """Says where the person is about to be sent. A page with a link, because a form of ours leads only to us."""
        session, server = await self._of_server(request)
        way = await self._gateway().linking.begin(session.caller, server)
        scopes = [plain(each, 120) for each in way.scopes]
        return self._page(
            "link.html", session, server=way.server, host=plain(way.host, 200), url=way.url, scopes=scopes
        )

    async def linked(self, request: Request) -> Response:
        session = await self._signed_in(request)
        await self._gateway().linking.finish(session.caller, dict(request.query_params))
        return self._go(PAGE)

    async def unlink(self, request: Request) -> Response:
        session, server = await self._of_server(request)
        await self._gateway().linking.unlink(session.caller, server)
        return self._go(PAGE)

    async def _of_server(self, request: Request) -> tuple[Session, str]:
        """Who sent the form of a server, and which it is."""
        form = await read_form(request, origin=self._console.origin)
        session = await self._signed_in(request)
        require_form_token(form.get("form_token"), session.form_token)
        return session, str(request.path_params["server"])

    async def _ticket_page(
        self, session: Session, ticket_id: str, *, opened: str = "", problem: Problem | None = None, typed: str = ""
    ) -> Response:
        gateway = self._gateway()
        shown = await gateway.approvals.show(session.caller, ticket_id)
        now = gateway.lifecycle.rooms.clock.now()
        rule = shown["why_not_rule"] if problem is None else problem.details.get("rule")
        return self._page(
            "ticket.html",
            session,
            status=200 if problem is None else problem.face.http,
            ticket=ticket_view(shown, now=now),
            again=self._again(ticket_id, shown, rule) if not opened else None,
            alert=None if problem is None else _alert(problem),
            typed=plain_text(typed),
            code_session=opened,
        )

    def _again(self, ticket_id: str, shown: dict[str, Any], rule: object) -> str | None:
        """Where a newer or stronger sign-in is to be had, if that is what is missing."""
        if rule not in ("fresh-sign-in", "step-up") or not self._console.has_sign_in:
            return None
        wanted = next((demand["step_up"] for demand in shown["demands"] if demand["step_up"]), "")
        asked = {"again": "1", "to": f"{_HOME}/{ticket_id}"} | ({"level": wanted} if rule == "step-up" else {})
        return f"{self._root}/console/sign-in?{urlencode(asked)}"

    async def _signed_in(self, request: Request) -> Session:
        console = self._console
        return await console.session(cookies.kept(request.cookies, cookies.SESSION, secure=console.secure))

    def _ask_for_code(self, ticket_id: str, problem: Problem | None = None) -> Response:
        console = self._console
        sign_in = f"{self._root}/console/sign-in?{urlencode({'to': f'{_HOME}/{ticket_id}'})}"
        return self._page(
            "code.html",
            None,
            status=200 if problem is None else problem.face.http,
            ticket_id=ticket_id,
            alert=None if problem is None else _alert(problem),
            sign_in=sign_in if console.has_sign_in else None,
        )

    def _to_sign_in(self, to: str) -> Response:
        return self._go(f"/console/sign-in?{urlencode({'to': to})}")

    def _go(self, path: str) -> Response:
        return RedirectResponse(self._root + path, status_code=303, headers=HEADERS)

    def _page(self, template: str, session: Session | None, *, status: int = 200, **facts: Any) -> Response:
        who = "" if session is None else plain(session.caller.user, 120)
        token = "" if session is None else session.form_token
        leaves = session is not None and session.ticket is None
        page = render(template, root=self._root, who=who, form_token=token, leaves=leaves, **facts)
        return HTMLResponse(page, status_code=status, headers=HEADERS)

    def _told(
        self, title: str, *paragraphs: str, again: str | None = None, trace: str = "", status: int = 200
    ) -> Response:
        link = None if again is None else {"href": self._root + again, "text": "Sign in"}
        return self._page("told.html", None, status=status, title=title, paragraphs=paragraphs, link=link, trace=trace)

    async def problem(self, request: Request, problem: Exception) -> Response:
        """A refusal as a page."""
        assert isinstance(problem, Problem)
        again = None
        if problem.face.http == 401 and self._has_sign_in:
            again = f"/console/sign-in?{urlencode({'to': _own_path(_without_verb(request.url.path))})}"
        return self._told(
            problem.face.title,
            plain(problem.message[:1].upper() + problem.message[1:], 600) + ".",
            plain(problem.advice, 600),
            again=again,
            trace=f"{problem.face.e_number} · trace {trace_id_of(request.scope)}",
            status=problem.face.http,
        )

    async def unrouted(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = "There is no such page." if error.status_code == 404 else "That cannot be done here."
        return self._told("Nothing here", told, status=error.status_code)

    async def unexpected(self, request: Request, error: Exception) -> Response:
        return await self.problem(request, hide(error, trace_id_of(request.scope)))

    @property
    def _console(self) -> Console:
        return self._gateway().console

    @property
    def _root(self) -> str:
        """What stands before our paths where people reach us: a proxy may have put us below an address of its own."""
        try:
            return urlsplit(self._console.base).path
        except Problem:
            return ""

    @property
    def _has_sign_in(self) -> bool:
        try:
            return self._console.has_sign_in
        except Problem:
            return False


def plain_text(typed: str) -> str:
    """What somebody typed goes back into their own form as it was, but for what they could not have typed."""
    return "".join(each for each in typed if each.isprintable() or each == "\n")[:2000]


def _alert(problem: Problem) -> dict[str, Any]:
    return {
        "message": plain(problem.message[:1].upper() + problem.message[1:], 600) + ".",
        "advice": plain(problem.advice, 600),
    }


def _ticket_id(request: Request) -> str:
    ticket_id = str(request.path_params["ticket_id"])
    if not _ID.fullmatch(ticket_id):
        raise TicketNotFound("there is no ticket with this id, or it is not for you to see")
    return ticket_id


def _own_path(path: str) -> str:
    """Where to go after a sign-in: a page of ours, whatever an address says."""
    return path if _OURS.fullmatch(path) else _HOME


def _without_verb(path: str) -> str:
    """The page of a form: nobody is sent back to where only a form goes."""
    return re.sub(r"/(?:code|approve|deny)$|/[^/]+/(?:link|unlink)$|/callback$", "", path)
