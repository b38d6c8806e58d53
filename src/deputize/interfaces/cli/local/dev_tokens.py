"""Issue tokens for `deputize dev`, and keep its issuer out of production."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jwt

from deputize.catalog.importers.mcp import list_scopes
from deputize.catalog.importers.openapi.contracts import list_service_scopes
from deputize.core.caller import ADMIN_SCOPE, UNDO_SCOPE
from deputize.core.contract.tools import ProjectTool
from deputize.core.settings import Settings
from deputize.govern.identity.dev_issuer import load_dev_issuer, mint_dev_token, reject_dev_issuers
from deputize.interfaces.cli.local.dev_environment import make_folder
from deputize.interfaces.cli.local.project_file import AGENT_TOKEN_FILE, TOKEN_FILE, read_saved_token
from deputize.interfaces.cli.render.output import printer
from deputize.store.private_file import replace_file

_TOKEN_SECONDS = 30 * 86_400
_RENEW_SECONDS = 7 * 86_400
# The agent that acts for the developer in every client that is given the agents' token.
DEV_AGENT = "assistant"
_OWN_SCOPES = "deputize:"


def require_real_issuers(settings: Settings) -> None:
    """Refuse settings that would trust the development issuer in production."""
    reject_dev_issuers(settings)


def add_dev_issuer(settings: Settings) -> Settings:
    """Trust the development issuer of this project, beside the issuers of the settings."""
    issuers = (*settings.identity.issuers, load_dev_issuer(settings.folder))
    return settings.model_copy(update={"identity": settings.identity.model_copy(update={"issuers": issuers})})


def mint_token(
    settings: Settings,
    *,
    user: str,
    agent: str | None,
    scopes: Sequence[str],
    tools: Mapping[str, str] | None,
    tenant: str | None,
    minutes: int,
) -> str:
    """Mint a development token; `tools` maps tool names to version ranges, None means no limit."""
    make_folder(settings.folder)
    return mint_dev_token(
        settings.folder,
        subject=user,
        agent=agent,
        scopes=scopes,
        tools=tools,
        tenant=tenant or settings.tools.tenant,
        lifetime=minutes * 60,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class DevTokens:
    """Tokens of a project: the developer's own for the command line, and one for agents, which administers nothing."""

    developer: str = field(repr=False)
    agent: str = field(repr=False)
    is_new: bool
    # Whether the project had none before.
    is_first: bool = False


def ensure_tokens(settings: Settings, tools: Iterable[ProjectTool]) -> DevTokens:
    """Return the project's tokens, with every scope its tools need; create those that are missing or outdated."""
    tenant = settings.tools.tenant
    scopes = {scope for tool in tools for scope in tool.contract.auth.required_scopes}
    scopes |= {scope for each in settings.servers if each.tenant in (None, tenant) for scope in list_scopes(each)}
    services = [each for each in settings.services if each.tenant in (None, tenant)]
    scopes |= {scope for each in services for scope in list_service_scopes(each)}
    # Scopes of the gateway itself, such as admin, are for people, even if a tool asks for one.
    agent_scopes = {scope for scope in scopes if not scope.startswith(_OWN_SCOPES)}
    load_dev_issuer(settings.folder)
    is_first = not any(read_saved_token(settings.folder, each) for each in (TOKEN_FILE, AGENT_TOKEN_FILE))
    developer, is_developer_new = _ensure_token(settings, TOKEN_FILE, None, {ADMIN_SCOPE, UNDO_SCOPE, *scopes})
    agent, is_agent_new = _ensure_token(settings, AGENT_TOKEN_FILE, DEV_AGENT, agent_scopes)
    is_new = is_developer_new or is_agent_new
    return DevTokens(developer=developer, agent=agent, is_new=is_new, is_first=is_first)


def print_tokens(tokens: DevTokens, file: Path, agent_file: Path) -> None:
    """Say where new tokens are, and show the one for agents the first time.

    The developer's own token is only named: it administers the gateway, and what is printed gets pasted into clients.
    """
    if not tokens.is_new:
        return
    facts = {"file": str(file), "agent_file": str(agent_file), "agent_token": tokens.agent, "first": tokens.is_first}
    if tokens.is_first:
        message = f"signing key and tokens created: yours in {file}, one for agents in {agent_file}"
        printer.event("token", facts, message)
        printer.line(f"  For agents and MCP clients: {tokens.agent}")
        return
    printer.event(
        "token",
        facts,
        f"tokens renewed, with the scopes that the tools need now: yours in {file}, one for agents in {agent_file}",
    )
    printer.line("  A client that has the old one calls the same tools as before; give it the new one for the others.")


def _ensure_token(settings: Settings, file: str, agent: str | None, scopes: set[str]) -> tuple[str, bool]:
    folder, tenant = settings.folder, settings.tools.tenant
    token = read_saved_token(folder, file)
    fresh_token = mint_dev_token(folder, lifetime=1)
    if token is not None and _is_usable_token(token, fresh_token, scopes, tenant, agent):
        return token, False
    new_token = mint_dev_token(folder, agent=agent, scopes=sorted(scopes), tenant=tenant, lifetime=_TOKEN_SECONDS)
    replace_file(folder / file, new_token.encode() + b"\n")
    return new_token, True


def _is_usable_token(token: str, fresh_token: str, scopes: set[str], tenant: str, agent: str | None) -> bool:
    """Tell whether a token has the current signing key, time left, the tenant, the agent and the scopes.

    An agent's token must have exactly these scopes: one that a tool no longer needs is no longer handed out.
    """
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
        token_scopes = set(str(claims["scope"]).split())
        key_id, current_key_id = (jwt.get_unverified_header(each).get("kid") for each in (token, fresh_token))
        return (
            key_id == current_key_id
            and int(claims["exp"]) > time.time() + _RENEW_SECONDS
            and claims.get("tenant") == tenant
            and claims.get("act") == (None if agent is None else {"sub": agent})
            and (scopes <= token_scopes if agent is None else scopes == token_scopes)
        )
    except (jwt.PyJWTError, KeyError, ValueError, TypeError):
        return False
