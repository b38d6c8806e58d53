"""Spell the paths and URLs of this gateway once, for the interfaces that serve them and the messages that name them."""

from typing import Final

from deputize.core.settings import Settings

CALLS_PATH: Final = "/v1/calls"
RPC_PATH: Final = "/rpc"
MCP_PATH: Final = "/mcp"
TOKEN_PATH: Final = "/oauth/token"
RESOURCE_METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
CLIENT_METADATA_PATH: Final = "/.well-known/oauth-client"

CONSOLE_PATH: Final = "/console"
CALLS_PAGE_PATH: Final = f"{CONSOLE_PATH}/calls"
FLOWS_PAGE_PATH: Final = f"{CONSOLE_PATH}/flows"
SWITCHES_PAGE_PATH: Final = f"{CONSOLE_PATH}/switches"
TOOLS_PAGE_PATH: Final = f"{CONSOLE_PATH}/tools"
POLICIES_PAGE_PATH: Final = f"{CONSOLE_PATH}/policies"
AGENTS_PAGE_PATH: Final = f"{CONSOLE_PATH}/agents"
ERROR_CODES_PAGE_PATH: Final = f"{CONSOLE_PATH}/errors"
AUDIT_PAGE_PATH: Final = f"{CONSOLE_PATH}/audit"
# The pages of approval requests keep the path that links in sent messages have.
APPROVALS_PAGE_PATH: Final = f"{CONSOLE_PATH}/approvals"
ACCOUNTS_PAGE_PATH: Final = f"{CONSOLE_PATH}/servers"
LINK_CALLBACK_PATH: Final = f"{ACCOUNTS_PAGE_PATH}/callback"
SIGN_IN_PATH: Final = f"{CONSOLE_PATH}/sign-in"
SIGN_IN_CALLBACK_PATH: Final = f"{CONSOLE_PATH}/callback"
SIGN_IN_LINK_PATH: Final = f"{SIGN_IN_PATH}/link"
SIGN_OUT_PATH: Final = f"{CONSOLE_PATH}/sign-out"


def get_base_url(settings: Settings) -> str | None:
    """Return the URL under which people reach this gateway, without a slash at its end; None if it is not set."""
    url = settings.approvals.console_url or settings.identity.public_url
    return None if url is None else url.rstrip("/")


def build_approval_url(settings: Settings, approval_id: str) -> str | None:
    """Build the URL of an approval request's page; None if this gateway does not know its own URL."""
    base_url = get_base_url(settings)
    return None if base_url is None else f"{base_url}{APPROVALS_PAGE_PATH}/{approval_id}"
