"""Load the session of a request, redirect, and render pages from templates, for all of the console."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from deputize.core.display_text import to_display_text
from deputize.core.errors import Problem
from deputize.core.settings.urls import SIGN_IN_PATH
from deputize.interfaces.console import cookies
from deputize.interfaces.console.csrf import SECURITY_HEADERS
from deputize.interfaces.console.render import render_template
from deputize.operations.gateway import ConsoleAccess, ConsoleSession, Gateway


class ConsolePages:
    """The base of the handlers of pages and forms. `get_gateway` raises a Problem while no gateway is open."""

    def __init__(self, get_gateway: Callable[[], Gateway]) -> None:
        self._get_gateway = get_gateway

    async def _load_session(self, request: Request) -> ConsoleSession:
        console = self._console
        return await console.load_session(
            cookies.read_cookie(request.cookies, cookies.SESSION, secure=console.is_secure)
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
