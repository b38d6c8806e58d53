"""Serve the console's pages, where signed-in people see what agents do and why, decide, and stop what should not go on.

    /console                    what needs this user, the newest calls, and charts of the last hour
    /console/calls              calls as they happen, with filters; /console/calls/{id} is one call with its reasons,
                                and with the forms that cancel, retry and undo it
    /console/errors/{code}      what an error code means, and what to do about it
    /console/flows/{id}         the graph of one call of a flow, its steps and their calls
    /console/approvals          the approval requests that wait for this user
    /console/approvals/{id}     one approval request on one screen, with the forms that decide it
    /console/tools, /policies, /agents, /audit
    /console/switches           the kill switches that are off, with the forms that turn something off and on
    /console/servers            MCP servers with their changes; the user's accounts there: link one, or unlink it
    /console/sign-in            redirects to the issuer, which returns to /console/callback; /console/sign-out

Pages that only show have one script of our own; pages with forms have none. What a page shows, the REST API returns to
the same person: both call the same methods of the gateway.

A signed-in user's session is in a sealed cookie. In development, a code from the terminal opens one approval request
and leaves nothing in the browser: its session is only in that page's forms, where no other program finds it.
`gateway.console_access` knows who is signed in; `gateway.approvals` decides what they may do.
"""

import asyncio
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from deputize.core.errors import Problem
from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    AGENTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    AUDIT_PAGE_PATH,
    CALLS_PAGE_PATH,
    CONSOLE_PATH,
    ERROR_CODES_PAGE_PATH,
    FLOWS_PAGE_PATH,
    LINK_CALLBACK_PATH,
    POLICIES_PAGE_PATH,
    SIGN_IN_CALLBACK_PATH,
    SIGN_IN_LINK_PATH,
    SIGN_IN_PATH,
    SIGN_OUT_PATH,
    SWITCHES_PAGE_PATH,
    TOOLS_PAGE_PATH,
)
from deputize.interfaces.console.account_pages import AccountPages
from deputize.interfaces.console.agent_pages import AgentPages
from deputize.interfaces.console.approval_pages import ApprovalPages
from deputize.interfaces.console.call_pages import AuditPages, CallPages
from deputize.interfaces.console.csrf import SECURITY_HEADERS
from deputize.interfaces.console.draft_pages import DraftPages
from deputize.interfaces.console.error_pages import ErrorPages
from deputize.interfaces.console.flow_pages import FlowPages
from deputize.interfaces.console.home_pages import HomePages
from deputize.interfaces.console.pages import LIVE_PATH, ConsolePages
from deputize.interfaces.console.policy_pages import PolicyPages
from deputize.interfaces.console.render import SCRIPT, SCRIPT_PATH, STYLESHEET, STYLESHEET_PATH
from deputize.interfaces.console.sign_in_pages import SignInPages
from deputize.interfaces.console.switch_pages import SwitchPages
from deputize.interfaces.console.tool_pages import ToolPages
from deputize.operations.gateway import Gateway

_CACHE_CONTROL = "public, max-age=31536000, immutable"


def build_console_app(get_gateway: Callable[[], Gateway], shutdown: asyncio.Event) -> Starlette:
    """Build the console's application; `shutdown` ends its streams."""
    sign_in, approvals = SignInPages(get_gateway), ApprovalPages(get_gateway)
    accounts, errors = AccountPages(get_gateway), ErrorPages(get_gateway)
    general, home = GeneralPages(get_gateway), HomePages(get_gateway)
    calls, audit = CallPages(get_gateway, shutdown), AuditPages(get_gateway, shutdown)
    flows, switches = FlowPages(get_gateway), SwitchPages(get_gateway)
    drafts = DraftPages(get_gateway)
    tools, policies, agents = ToolPages(get_gateway), PolicyPages(get_gateway), AgentPages(get_gateway)
    call_path, grant_path = f"{CALLS_PAGE_PATH}/{{call_id}}", f"{AGENTS_PAGE_PATH}/grants/{{grant_id}}/revoke"
    request_path = f"{APPROVALS_PAGE_PATH}/{{approval_id}}"
    app = Starlette(
        routes=[
            Route("/", general.redirect_home),
            Route(CONSOLE_PATH, home.require_session(home.show_home)),
            Route(f"{CONSOLE_PATH}/", general.redirect_home),
            Route(f"{CONSOLE_PATH}/search", home.require_session(home.search)),
            Route(STYLESHEET_PATH, general.serve_style),
            Route(SCRIPT_PATH, general.serve_script),
            Route(f"{ERROR_CODES_PAGE_PATH}/{{code}}", errors.require_session(errors.show_code)),
            Route(CALLS_PAGE_PATH, calls.require_session(calls.list_entries)),
            Route(LIVE_PATH, calls.require_session(calls.stream_rows)),
            Route(call_path, calls.require_session(calls.show_call)),
            Route(f"{call_path}/cancel", calls.require_session(calls.confirm_cancel), methods=["GET"]),
            Route(f"{call_path}/cancel", calls.cancel, methods=["POST"]),
            Route(f"{call_path}/retry", calls.require_session(calls.confirm_retry), methods=["GET"]),
            Route(f"{call_path}/retry", calls.retry, methods=["POST"]),
            Route(f"{call_path}/undo", calls.require_session(calls.confirm_undo), methods=["GET"]),
            Route(f"{call_path}/undo", calls.undo, methods=["POST"]),
            Route(f"{FLOWS_PAGE_PATH}/{{flow_id}}", flows.require_session(flows.show_flow)),
            Route(AUDIT_PAGE_PATH, audit.require_session(audit.list_entries)),
            Route(f"{AUDIT_PAGE_PATH}/export", audit.require_session(audit.export)),
            Route(f"{AUDIT_PAGE_PATH}/{{entry_id}}", audit.require_session(audit.show_entry)),
            Route(TOOLS_PAGE_PATH, tools.require_session(tools.list_tools)),
            Route(f"{TOOLS_PAGE_PATH}/{{name}}", tools.require_session(tools.show_tool)),
            Route(POLICIES_PAGE_PATH, policies.require_session(policies.show_policies)),
            Route(f"{POLICIES_PAGE_PATH}/simulate", policies.require_session(policies.show_simulator), methods=["GET"]),
            Route(f"{POLICIES_PAGE_PATH}/simulate", policies.simulate, methods=["POST"]),
            Route(f"{POLICIES_PAGE_PATH}/backtest", drafts.require_session(drafts.show_form), methods=["GET"]),
            Route(f"{POLICIES_PAGE_PATH}/backtest", drafts.backtest, methods=["POST"]),
            Route(AGENTS_PAGE_PATH, agents.require_session(agents.list_agents)),
            Route(grant_path, agents.require_session(agents.confirm_revocation), methods=["GET"]),
            Route(grant_path, agents.revoke, methods=["POST"]),
            Route(SWITCHES_PAGE_PATH, switches.require_session(switches.list_switches)),
            Route(f"{SWITCHES_PAGE_PATH}/off", switches.require_session(switches.confirm_off), methods=["GET"]),
            Route(f"{SWITCHES_PAGE_PATH}/off", switches.turn_off, methods=["POST"]),
            Route(f"{SWITCHES_PAGE_PATH}/on", switches.require_session(switches.confirm_on), methods=["GET"]),
            Route(f"{SWITCHES_PAGE_PATH}/on", switches.turn_on, methods=["POST"]),
            Route(SIGN_IN_PATH, sign_in.start_sign_in),
            Route(SIGN_IN_CALLBACK_PATH, sign_in.finish_sign_in),
            Route(SIGN_IN_LINK_PATH, sign_in.open_link),
            Route(SIGN_OUT_PATH, sign_in.require_session(sign_in.confirm_sign_out), methods=["GET"]),
            Route(SIGN_OUT_PATH, sign_in.sign_out, methods=["POST"]),
            Route(APPROVALS_PAGE_PATH, approvals.list_approval_requests),
            Route(request_path, approvals.show_approval_request),
            Route(f"{request_path}/code", approvals.submit_code, methods=["POST"]),
            Route(f"{request_path}/approve", approvals.approve, methods=["POST"]),
            Route(f"{request_path}/deny", approvals.deny, methods=["POST"]),
            Route(ACCOUNTS_PAGE_PATH, accounts.list_accounts),
            Route(LINK_CALLBACK_PATH, accounts.finish_link),
            Route(f"{ACCOUNTS_PAGE_PATH}/{{server}}/changes", accounts.require_session(accounts.show_changes)),
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
    """The handlers of the root, the stylesheet and the script."""

    async def redirect_home(self, request: Request) -> Response:
        return self._redirect(CONSOLE_PATH)

    async def serve_style(self, request: Request) -> Response:
        return Response(
            STYLESHEET, media_type="text/css", headers={**SECURITY_HEADERS, "cache-control": _CACHE_CONTROL}
        )

    async def serve_script(self, request: Request) -> Response:
        return Response(
            SCRIPT, media_type="text/javascript", headers={**SECURITY_HEADERS, "cache-control": _CACHE_CONTROL}
        )
