"""Serve the console's pages, where signed-in people decide approval requests and link their accounts at servers.

    /console/approvals          the approval requests that wait for this user
    /console/approvals/{id}     one approval request on one screen, with the forms that decide it
    /console/servers            the user's accounts at MCP servers: link one through its issuer, or unlink it
    /console/sign-in            redirects to the issuer, which returns to /console/callback; /console/sign-out

A signed-in user's session is in a sealed cookie. In development, a code from the terminal opens one approval request
and leaves nothing in the browser: its session is only in that page's forms, where no other program finds it.
`gateway.console_access` knows who is signed in; `gateway.approvals` decides what they may do.
"""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deputize.core.errors import Problem
from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    CONSOLE_PATH,
    LINK_CALLBACK_PATH,
    SIGN_IN_CALLBACK_PATH,
    SIGN_IN_PATH,
    SIGN_OUT_PATH,
)
from deputize.interfaces.console.account_pages import AccountPages
from deputize.interfaces.console.approval_pages import ApprovalPages
from deputize.interfaces.console.csrf import SECURITY_HEADERS
from deputize.interfaces.console.error_pages import ErrorPages
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.render import STYLESHEET, STYLESHEET_PATH
from deputize.interfaces.console.sign_in_pages import SignInPages
from deputize.operations.gateway import Gateway

_STYLE_CACHE_CONTROL = "public, max-age=31536000, immutable"


def build_console_app(get_gateway: Callable[[], Gateway]) -> Starlette:
    """Build the console's application."""
    sign_in, approvals = SignInPages(get_gateway), ApprovalPages(get_gateway)
    accounts, errors = AccountPages(get_gateway), ErrorPages(get_gateway)
    general = GeneralPages(get_gateway)
    request_path = f"{APPROVALS_PAGE_PATH}/{{approval_id}}"
    app = Starlette(
        routes=[
            Route(CONSOLE_PATH, general.show_home),
            Route(STYLESHEET_PATH, general.serve_style),
            Route(SIGN_IN_PATH, sign_in.start_sign_in),
            Route(SIGN_IN_CALLBACK_PATH, sign_in.finish_sign_in),
            Route(SIGN_OUT_PATH, sign_in.sign_out, methods=["POST"]),
            Route(APPROVALS_PAGE_PATH, approvals.list_approval_requests),
            Route(request_path, approvals.show_approval_request),
            Route(f"{request_path}/code", approvals.submit_code, methods=["POST"]),
            Route(f"{request_path}/approve", approvals.approve, methods=["POST"]),
            Route(f"{request_path}/deny", approvals.deny, methods=["POST"]),
            Route(ACCOUNTS_PAGE_PATH, accounts.list_accounts),
            Route(LINK_CALLBACK_PATH, accounts.finish_link),
            Route(f"{ACCOUNTS_PAGE_PATH}/{{server}}/link", accounts.confirm_link, methods=["POST"]),
            Route(f"{ACCOUNTS_PAGE_PATH}/{{server}}/unlink", accounts.unlink, methods=["POST"]),
        ],
        exception_handlers={
            Problem: errors.handle_problem,
            HTTPException: errors.handle_http_error,
            Exception: errors.handle_unexpected_error,
        },
    )
    # The framework's redirects would use the host that the request names, which may be forged.
    app.router.redirect_slashes = False
    return app


class GeneralPages(ConsolePages):
    """The handlers of the console's root and of its stylesheet."""

    async def show_home(self, request: Request) -> Response:
        return self._redirect(APPROVALS_PAGE_PATH)

    async def serve_style(self, request: Request) -> Response:
        return Response(
            STYLESHEET, media_type="text/css", headers={**SECURITY_HEADERS, "cache-control": _STYLE_CACHE_CONTROL}
        )
