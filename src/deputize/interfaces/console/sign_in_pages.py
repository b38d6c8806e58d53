"""Sign people in through the issuer, and out."""

import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from deputize.core.errors import SignInFailed
from deputize.core.settings.urls import CONSOLE_PATH, SIGN_OUT_PATH
from deputize.interfaces.connections import find_client
from deputize.interfaces.console import cookies
from deputize.interfaces.console.csrf import SECURITY_HEADERS, read_form, require_form_token
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.paths import choose_own_path
from deputize.operations.gateway import ConsoleSession

_LEVEL = re.compile(r"[A-Za-z0-9:._/-]{1,255}")


class SignInPages(ConsolePages):
    """The handlers of /console/sign-in, /console/callback and /console/sign-out."""

    async def start_sign_in(self, request: Request) -> Response:
        console, query = self._console, request.query_params
        target = choose_own_path(query.get("to", ""))
        if not console.has_sign_in:
            raise SignInFailed(
                "sign-in is not configured for this console",
                advice="In development, open the newest console link in the terminal of deputize dev; for an approval "
                "request, open its URL and enter the code from the terminal. "
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
        address = find_client(request.scope, self._get_gateway().settings.server.reverse_proxies)
        session, target = await console.finish_sign_in(sign_in_state, dict(request.query_params), address=address)
        response = self._redirect(choose_own_path(target))
        seconds = self._get_gateway().settings.console.session_seconds
        cookies.set_cookie(response, cookies.SESSION, session, secure=console.is_secure, seconds=seconds)
        cookies.delete_cookie(response, cookies.SIGN_IN, secure=console.is_secure)
        return response

    async def open_link(self, request: Request) -> Response:
        """Sign in by the link that `deputize dev` shows."""
        console = self._console
        session, seconds = await console.open_link_session(request.query_params.get("link", ""))
        response = self._redirect(CONSOLE_PATH)
        cookies.set_cookie(response, cookies.SESSION, session, secure=console.is_secure, seconds=seconds)
        return response

    async def confirm_sign_out(self, request: Request, session: ConsoleSession) -> Response:
        return self._render_page(
            "confirm.html",
            session,
            title="Sign out",
            facts=[],
            notes=["You may still be signed in at your identity provider."],
            action=SIGN_OUT_PATH,
            button="Sign out",
            back_path=CONSOLE_PATH,
            asks_reason=False,
            alert=None,
            reason="",
        )

    async def sign_out(self, request: Request) -> Response:
        console = self._console
        form = await read_form(request, origin=console.origin)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        response = self._render_message(
            "Signed out",
            "You are signed out of this console. You may still be signed in at your identity provider.",
            sign_in_path=CONSOLE_PATH,
        )
        cookies.delete_cookie(response, cookies.SESSION, secure=console.is_secure)
        return response
