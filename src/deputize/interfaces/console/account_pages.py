"""Show MCP servers and how they differ from what was accepted, and a person's accounts there: link and unlink them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.display_text import to_display_text
from deputize.core.errors import SignInFailed
from deputize.core.settings.urls import ACCOUNTS_PAGE_PATH
from deputize.interfaces.console.csrf import read_form, require_form_token
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.view import (
    UNLINK_NOTICES,
    build_account_view,
    build_badge,
    build_time_view,
    build_value_view,
    format_line,
)
from deputize.operations.gateway import ConsoleSession

_MAX_CHANGES: Final = 50
_MAX_PINS: Final = 500
_STATUS_BADGES: Final = {
    "connected": ("●", "connected", "good"),
    "unavailable": ("✕", "unavailable", "bad"),
    "unseen": ("○", "not probed yet", "plain"),
}
_PIN_BADGES: Final = {
    "same": ("✓", "as accepted", "good"),
    "changed": ("△", "changed", "pending"),
    "removed": ("✕", "removed", "bad"),
    "unknown": ("○", "not probed", "plain"),
}


class AccountPages(ConsolePages):
    """The handlers of /console/servers and of the forms of a server."""

    section_path = ACCOUNTS_PAGE_PATH

    async def list_accounts(self, request: Request) -> Response:
        try:
            session = await self._load_session(request)
        except SignInFailed:
            return self._redirect_to_sign_in(ACCOUNTS_PAGE_PATH)
        gateway = self._get_gateway()
        accounts = await gateway.account_links.list_accounts(session.caller)
        servers = await gateway.servers.list_servers(session.caller) if session.caller.is_auditor else []
        now = gateway.clock.now()
        return self._render_page(
            "servers.html",
            session,
            accounts=[build_account_view(each, now=now) for each in accounts],
            servers=[_build_server(each, now=now) for each in servers],
            notice=UNLINK_NOTICES.get(request.query_params.get("unlinked", "")),
        )

    async def show_changes(self, request: Request, session: ConsoleSession) -> Response:
        """Show a server's definitions that differ from their pins, before and after side by side."""
        gateway, name = self._get_gateway(), str(request.path_params["server"])
        server = await gateway.servers.get_server(session.caller, name)
        changes = await gateway.servers.list_changes(session.caller, name, limit=_MAX_CHANGES)
        now = gateway.clock.now()
        return self._render_page(
            "server.html",
            session,
            has_script=True,
            server=_build_server(server, now=now),
            pins=[
                {
                    "item": format_line(each["item"]),
                    "tool": format_line(each["tool"] or ""),
                    "version": format_line(each["version"] or ""),
                    "accepted_by": format_line(each["accepted_by"]),
                    "now": build_badge(_PIN_BADGES, each["now"] or "unknown"),
                }
                for each in server["pins"][:_MAX_PINS]
            ],
            changes=[_build_change(each, now=now) for each in changes],
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


def _build_server(server: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    address = server["address"]
    return {
        "name": server["name"],
        # Of a program, its name: where it lies on the host tells nobody what it is.
        "address": format_line(address.rpartition("/")[2] if server["kind"] == "stdio" else address),
        "kind": server["kind"],
        "status": build_badge(_STATUS_BADGES, server["status"]),
        "why": format_line(server["why"] or ""),
        "probed_at": build_time_view(server["probed_at"], now=now),
        "title": format_line(server["title"] or ""),
        "version": format_line(server["version"] or ""),
        "tools": server["tools"],
        "changes": server["changes"],
    }


def _build_change(change: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    return {
        "item": format_line(change["display_item"]),
        "kind": format_line(change["kind"]),
        "seen_at": build_time_view(change["seen_at"], now=now),
        "flags": [format_line(str(each)) for each in change["flags"][:20]],
        "differences": [
            {
                "where": format_line(each["where"]),
                "before": build_value_view("before", each["before"]),
                "after": build_value_view("after", each["after"]),
            }
            for each in change["differences"][:50]
        ],
        "digest": format_line(change["digest"]),
    }
