"""`deputize dev` makes two tokens: the developer's own, and one for agents that administers nothing."""

from pathlib import Path
from typing import Any

import jwt
import pytest

from deputize.core.contract.tools import ProjectTool
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.dev_tokens import DevTokens, ensure_tokens
from deputize.interfaces.cli.local.tool_loader import load_tool_files

pytestmark = pytest.mark.requirement("GOV-2")

PYTHON = '''
from deputize import tool

@tool(effects="read", scopes=["notes:read", "deputize:admin"], examples=[{}])
def look() -> int:
    """Look at the notes."""
    return 1
'''


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(folder=tmp_path)


@pytest.fixture
def tools(tmp_path: Path) -> tuple[ProjectTool, ...]:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "notes.py").write_text(PYTHON)
    return tuple(load_tool_files(("tools/*.py",), (), tmp_path).tools)


def read_claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return claims


def test_the_agents_token_acts_for_the_developer_and_administers_nothing(
    settings: Settings, tools: tuple[ProjectTool, ...]
) -> None:
    tokens = ensure_tokens(settings, tools)
    developer, agent = read_claims(tokens.developer), read_claims(tokens.agent)
    assert ("act" in developer, set(developer["scope"].split())) == (
        False,
        {"deputize:admin", "deputize:undo", "notes:read"},
    )
    assert (agent["sub"], agent["act"]) == (developer["sub"], {"sub": "assistant"})
    # Not even if a tool asks for the scope of administrators.
    assert agent["scope"] == "notes:read"
    assert (settings.folder / "agent-token").read_text().strip() == tokens.agent
    assert (settings.folder / "agent-token").stat().st_mode & 0o777 == 0o600


def test_tokens_are_kept_until_they_no_longer_fit(settings: Settings, tools: tuple[ProjectTool, ...]) -> None:
    first = ensure_tokens(settings, tools)
    assert first.is_first
    assert ensure_tokens(settings, tools) == DevTokens(developer=first.developer, agent=first.agent, is_new=False)
    fewer = ensure_tokens(settings, ())
    assert (fewer.developer, read_claims(fewer.agent)["scope"]) == (first.developer, "")
    assert (fewer.is_new, fewer.is_first) == (True, False)


def test_a_token_with_authority_in_the_agents_file_is_replaced(
    settings: Settings, tools: tuple[ProjectTool, ...]
) -> None:
    first = ensure_tokens(settings, tools)
    (settings.folder / "agent-token").write_text(first.developer)
    again = ensure_tokens(settings, tools)
    assert (again.is_new, read_claims(again.agent)["act"]) == (True, {"sub": "assistant"})
