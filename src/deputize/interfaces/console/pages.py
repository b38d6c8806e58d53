"""Load the session of a request, redirect, and render pages from templates, for all of the console."""

import base64
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from deputize.core.caller import Caller
from deputize.core.display_text import to_display_text
from deputize.core.errors import Problem, SignInFailed
from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    AGENTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    AUDIT_PAGE_PATH,
    CALLS_PAGE_PATH,
    CONSOLE_PATH,
    POLICIES_PAGE_PATH,
    SIGN_IN_PATH,
    SWITCHES_PAGE_PATH,
    TOOLS_PAGE_PATH,
)
from deputize.interfaces.console import cookies
from deputize.interfaces.console.csrf import SECURITY_HEADERS, build_script_headers
from deputize.interfaces.console.render import render_template
from deputize.operations.gateway import ConsoleAccess, ConsoleSession, Gateway

SessionHandler = Callable[[Request, ConsoleSession], Awaitable[Response]]
LIVE_PATH: Final = f"{CALLS_PAGE_PATH}/live"
# Text, path, the letter after `g`, and whether only those who see the tenant can open it.
_MENU: Final = (
    ("Home", CONSOLE_PATH, "h", False),
    ("Calls", CALLS_PAGE_PATH, "c", False),
    ("Approvals", APPROVALS_PAGE_PATH, "a", False),
    ("Tools", TOOLS_PAGE_PATH, "t", False),
    ("Servers", ACCOUNTS_PAGE_PATH, "s", False),
    ("Policies", POLICIES_PAGE_PATH, "p", True),
    ("Agents", AGENTS_PAGE_PATH, "n", False),
    ("Switches", SWITCHES_PAGE_PATH, "w", True),
    ("Audit", AUDIT_PAGE_PATH, "u", False),
)
_NONCE_BYTES: Final = 16


class ConsolePages:
    """The base of the handlers of pages and forms. `get_gateway` raises a Problem while no gateway is open."""

    # The page of the menu that these handlers belong to.
    section_path = ""

    def __init__(self, get_gateway: Callable[[], Gateway]) -> None:
        self._get_gateway = get_gateway

    def require_session(self, handler: SessionHandler) -> Callable[[Request], Awaitable[Response]]:
        """Wrap the handler of a page: a person who is not signed in is sent to the sign-in, and comes back to it."""

        async def handle(request: Request) -> Response:
            try:
                session = await self._load_session(request)
            except SignInFailed:
                return self._redirect_to_sign_in(request.url.path)
            return await handler(request, session)

        return handle

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
        self,
        template: str,
        session: ConsoleSession | None,
        *,
        status: int = 200,
        has_script: bool = False,
        followed_path: str = "",
        search_text: str = "",
        **variables: Any,
    ) -> Response:
        """Render a page. One with a script only shows: the token that forms need is not in it.

        `followed_path` is that of the page itself, if its script may read it again.
        """
        is_signed_in = session is not None and session.approval_id is None
        nonce = base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode() if has_script else ""
        page = render_template(
            template,
            root=self._root,
            user="" if session is None else to_display_text(session.caller.user, 120),
            role="" if session is None else name_role(session.caller),
            form_token="" if session is None or has_script else session.form_token,
            can_sign_out=is_signed_in,
            station=self._console.station if is_signed_in else None,
            menu=self._build_menu(session.caller) if session is not None and is_signed_in else [],
            nonce=nonce,
            search_text=to_display_text(search_text, 200),
            **variables,
        )
        headers = SECURITY_HEADERS
        if has_script:
            paths = (LIVE_PATH, followed_path) if followed_path else (LIVE_PATH,)
            headers = build_script_headers(nonce, *(self._console.base_url + each for each in paths))
        return HTMLResponse(page, status_code=status, headers=headers)

    def _build_menu(self, caller: Caller) -> list[dict[str, Any]]:
        return [
            {"text": text, "path": path, "letter": letter, "is_current": path == self.section_path}
            for text, path, letter, is_for_auditors in _MENU
            if caller.is_auditor or not is_for_auditors
        ]

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


def name_role(caller: Caller) -> str:
    """Name what a person sees, by the scopes of their session: the console has no rights of its own."""
    if caller.is_admin:
        return "administrator"
    if caller.can_operate:
        return "operator"
    return "auditor" if caller.is_auditor else "your own calls"
