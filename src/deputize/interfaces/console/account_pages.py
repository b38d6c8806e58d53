"""Show a person's accounts at MCP servers, and link and unlink them."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.display_text import to_display_text
from deputize.core.errors import SignInFailed
from deputize.core.settings.urls import ACCOUNTS_PAGE_PATH
from deputize.interfaces.console.csrf import read_form, require_form_token
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.view import UNLINK_NOTICES, build_account_view
from deputize.operations.gateway import ConsoleSession


class AccountPages(ConsolePages):
    """The handlers of /console/servers and of the forms of a server."""

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
