"""Delegate authority to an agent at the command line, and revoke it."""

import re
from pathlib import Path

import jwt
import pytest

from tests.acceptance.cli.cli_process import run_deputize

pytestmark = [pytest.mark.requirement("GOV-1", "NEW-7"), pytest.mark.nightly]


def _decode_claims(token: str) -> dict[str, object]:
    return dict(jwt.decode(token.strip(), options={"verify_signature": False}))


def test_a_delegated_token_is_used_listed_and_revoked(shop_project: Path) -> None:
    lent = run_deputize(
        "token", "exchange", "--agent", "billing-bot", "--tool", "hello.greet@^0.1", "--task", "invoices",
        "--lifetime", "15m", folder=shop_project,
    )  # fmt: skip
    assert lent.code == 0, lent.output
    assert "for billing-bot, 15 minutes" in lent.err
    token = lent.out.strip()
    claims = _decode_claims(token)
    assert claims["act"] == {"sub": "billing-bot"}
    assert claims["task"] == "invoices"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/t/dev", str(claims["iss"]))

    assert (
        run_deputize("call", "hello.greet", "name=Ana", "--token", token, folder=shop_project).out == '"Hello, Ana!"\n'
    )
    hidden = run_deputize("call", "hello.remember", "text=x", "--key", "k", "--token", token, folder=shop_project)
    assert (hidden.code, "Tool not found (E3101)" in hidden.err) == (1, True)

    listed = run_deputize("grants", "list", folder=shop_project)
    assert "billing-bot for developer" in listed.out
    grant = run_deputize("grants", "list", "--json", folder=shop_project).json["grants"][0]
    assert grant["state"] == "active"
    assert f"deputize grants revoke {grant['grant_id']}" in lent.err
    assert run_deputize("grants", "show", grant["grant_id"], "--json", folder=shop_project).json["task"] == "invoices"

    assert "✓ Revoked" in run_deputize("grants", "revoke", grant["grant_id"], folder=shop_project).out
    refused = run_deputize("call", "hello.greet", "name=Ana", "--token", token, folder=shop_project)
    assert (refused.code, "The token, or the authority behind it, was revoked (E3210)" in refused.err) == (1, True)


def test_delegating_more_than_the_own_token_has_is_refused(shop_project: Path) -> None:
    refused = run_deputize("token", "exchange", "--agent", "bot", "--scope", "not:mine", folder=shop_project)
    assert refused.code == 1
    assert "Token exchange refused (E3217)" in refused.err
    assert "the subject token does not have the scopes not:mine" in refused.err
    as_json = run_deputize("token", "exchange", "--agent", "bot", "--scope", "not:mine", "--json", folder=shop_project)
    assert as_json.json["error"]["details"]["rule"] == "exchange-scopes"
    assert (
        "write it like 90s"
        in run_deputize("token", "exchange", "--agent", "b", "--lifetime", "soon", folder=shop_project).err
    )
    assert "Delegation not found (E3219)" in run_deputize("grants", "revoke", "nothing", folder=shop_project).err


def test_a_misspelt_tool_and_a_long_life_are_pointed_out(shop_project: Path) -> None:
    lent = run_deputize(
        "token", "exchange", "--agent", "bot", "--tool", "hello.gret", "--lifetime", "90d", folder=shop_project,
    )  # fmt: skip

    assert lent.code == 0
    assert (
        "! The token was created, but check the tool's name: there is no tool hello.gret; did you mean hello.greet?"
        in lent.err
    )
    assert "! The token is valid for 8 hours, not 90 days: your own token or this gateway allows no more." in lent.err


@pytest.mark.parametrize(("words", "env"), [(("--token", ""), {}), ((), {"DEPUTIZE_TOKEN": ""})])
def test_an_empty_token_does_not_become_the_development_token(
    shop_project: Path, words: tuple[str, ...], env: dict[str, str]
) -> None:
    done = run_deputize("call", "hello.greet", "name=Ana", *words, folder=shop_project, env=env)

    assert (done.code, done.out) == (2, "")
    assert "empty" in done.err


def test_json_is_the_answer_and_nothing_else(shop_project: Path) -> None:
    lent = run_deputize("token", "exchange", "--agent", "bot", "--ceiling", "read", "--json", folder=shop_project)
    assert lent.json["token_type"] == "Bearer"
    assert _decode_claims(lent.json["access_token"])["ceiling"] == "read"
    assert lent.err == ""
