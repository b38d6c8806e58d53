"""`deputize revoke` as an administrator uses it: users, agents, tokens and delegations, and the list of them."""

import re
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import run_as_operator, run_deputize

pytestmark = [pytest.mark.requirement("GOV-1"), pytest.mark.nightly]
REVOKED = "The token, or the authority behind it, was revoked (E3210)"


def _exchange_token(folder: Path, agent: str) -> str:
    return run_deputize("token", "exchange", "--agent", agent, folder=folder).out.strip()


def _call(folder: Path, token: str) -> str:
    done = run_deputize("call", "hello.greet", "name=Ana", "--token", token, folder=folder)
    return done.out if done.code == 0 else done.err


def test_an_agent_is_revoked_listed_and_refused(shop_project: Path) -> None:
    assert run_deputize("revoke", "list", folder=shop_project).out == "Nothing was revoked.\n"
    token = _exchange_token(shop_project, "stolen-bot")
    assert _call(shop_project, token) == '"Hello, Ana!"\n'

    done = run_deputize("revoke", "agent", "stolen-bot", "--reason", "its machine was stolen", folder=shop_project)

    assert done.code == 0, done.output
    assert done.out.startswith("✓ Revoked the agent stolen-bot: no call starts that this agent takes part in")
    assert "1 active delegation ended with it" in done.err
    assert REVOKED in _call(shop_project, token)
    listed = run_deputize("revoke", "list", folder=shop_project).out
    assert re.search(r"agent +stolen-bot +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +developer +its machine was stolen", listed)


def test_a_whole_token_is_revoked_by_its_id_and_a_grant_by_its_own(shop_project: Path) -> None:
    token, other = _exchange_token(shop_project, "first"), _exchange_token(shop_project, "second")
    as_json = run_deputize("revoke", "token", token, "--json", folder=shop_project)
    assert (as_json.json["kind"], as_json.json["ended_grants"]) == ("token", None)
    assert token not in as_json.output
    assert REVOKED in _call(shop_project, token)
    assert _call(shop_project, other) == '"Hello, Ana!"\n'

    grants = run_deputize("grants", "list", "--json", folder=shop_project).json["grants"]
    grant_id = next(each["grant_id"] for each in grants if each["agents"] == ["second"])
    assert run_deputize("revoke", "grant", grant_id, folder=shop_project).out.startswith("✓ Revoked the grant")
    assert REVOKED in _call(shop_project, other)


def test_a_user_is_revoked_and_a_token_without_an_id_is_explained(shop_project: Path) -> None:
    leaver = run_deputize("token", "--user", "leaver", folder=shop_project).out.strip()
    for agent in ("first-bot", "second-bot"):
        run_deputize("token", "exchange", "--agent", agent, "--token", leaver, folder=shop_project)
    run_deputize("revoke", "agent", "first-bot", "--yes", folder=shop_project)
    done = run_deputize("revoke", "user", "leaver", "--yes", folder=shop_project)
    # Not the one that was revoked before.
    assert (done.code, "1 active delegation ended with it" in done.err) == (0, True)
    assert REVOKED in _call(shop_project, leaver)
    nameless = run_deputize("revoke", "token", "eyJhbGciOiJub25lIn0.e30.x", folder=shop_project)
    assert (nameless.code, "This token has no jti" in nameless.err) == (2, True)


def test_a_user_is_erased_with_an_operators_code(shop_project: Path) -> None:
    token = run_deputize("token", "--user", "goner", folder=shop_project).out.strip()
    assert _call(shop_project, token) == '"Hello, Ana!"\n'
    lent = run_deputize("token", "exchange", "--agent", "bot", "--token", token, folder=shop_project).out.strip()
    done = run_as_operator("erase", "user", "goner", folder=shop_project)
    assert done.code == 0, done.output
    assert "1 active delegation ended with it" in done.err
    status = re.search(r"deputize (erase status) ([0-9a-f-]{36})", done.out)
    assert status is not None, done.output
    shown = run_deputize(*status[1].split(), status[2], "--json", folder=shop_project).json
    assert (shown["erasure_id"], shown["state"]) == (status[2], "in_progress")
    assert REVOKED in _call(shop_project, lent)
    assert run_deputize("erase", "status", "nothing", folder=shop_project).code == 1
