"""What a person types to lend an agent something, and to take it back."""

import re
from pathlib import Path

import jwt
import pytest

from tests.acceptance.cli.shell import deputize

pytestmark = pytest.mark.requirement("GOV-1", "NEW-7")


def _claims(token: str) -> dict[str, object]:
    return dict(jwt.decode(token.strip(), options={"verify_signature": False}))


def test_a_token_is_lent_used_listed_and_taken_back(shop: Path) -> None:
    lent = deputize(
        "token", "exchange", "--agent", "billing-bot", "--tool", "hello.greet@^0.1", "--task", "invoices",
        "--lifetime", "15m", folder=shop,
    )  # fmt: skip
    assert lent.code == 0, lent.said
    assert "for billing-bot, 15 minutes" in lent.err
    token = lent.out.strip()
    claims = _claims(token)
    assert claims["act"] == {"sub": "billing-bot"}
    assert claims["task"] == "invoices"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/t/dev", str(claims["iss"]))

    assert deputize("call", "hello.greet", "name=Ana", "--token", token, folder=shop).out == '"Hello, Ana!"\n'
    hidden = deputize("call", "hello.remember", "text=x", "--key", "k", "--token", token, folder=shop)
    assert (hidden.code, "No such tool (E3101)" in hidden.err) == (1, True)

    listed = deputize("grants", "list", folder=shop)
    assert "billing-bot for developer" in listed.out
    grant = deputize("grants", "list", "--json", folder=shop).json["grants"][0]
    assert grant["state"] == "active"
    assert f"deputize grants revoke {grant['grant_id']}" in lent.err
    assert deputize("grants", "show", grant["grant_id"], "--json", folder=shop).json["task"] == "invoices"

    assert "taken back" in deputize("grants", "revoke", grant["grant_id"], folder=shop).out
    refused = deputize("call", "hello.greet", "name=Ana", "--token", token, folder=shop)
    assert (refused.code, "This authority was revoked (E3210)" in refused.err) == (1, True)


def test_lending_more_than_one_has_is_refused_in_words(shop: Path) -> None:
    refused = deputize("token", "exchange", "--agent", "bot", "--scope", "not:mine", folder=shop)
    assert refused.code == 1
    assert "This token cannot be exchanged like that (E3217)" in refused.err
    assert "the token in hand does not have the scopes not:mine" in refused.err
    as_json = deputize("token", "exchange", "--agent", "bot", "--scope", "not:mine", "--json", folder=shop)
    assert as_json.json["error"]["details"]["rule"] == "exchange-scopes"
    assert "write it like 90s" in deputize("token", "exchange", "--agent", "b", "--lifetime", "soon", folder=shop).err
    assert "No such delegation (E3219)" in deputize("grants", "revoke", "nothing", folder=shop).err


def test_a_misspelt_tool_and_a_long_life_are_pointed_out(shop: Path) -> None:
    lent = deputize(
        "token", "exchange", "--agent", "bot", "--tool", "hello.gret", "--lifetime", "90d", folder=shop,
    )  # fmt: skip

    assert lent.code == 0
    assert "! it is lent all the same, but there is no tool hello.gret; did you mean hello.greet?" in lent.err
    assert "! it lasts 8 hours, not 90 days: your own token or this gateway allows no more" in lent.err


@pytest.mark.parametrize(("words", "env"), [(("--token", ""), {}), ((), {"DEPUTIZE_TOKEN": ""})])
def test_a_token_that_could_not_be_had_is_not_the_developers_own(
    shop: Path, words: tuple[str, ...], env: dict[str, str]
) -> None:
    done = deputize("call", "hello.greet", "name=Ana", *words, folder=shop, env=env)

    assert (done.code, done.out) == (2, "")
    assert "empty" in done.err


def test_json_is_the_answer_and_nothing_else(shop: Path) -> None:
    lent = deputize("token", "exchange", "--agent", "bot", "--ceiling", "read", "--json", folder=shop)
    assert lent.json["token_type"] == "Bearer"
    assert _claims(lent.json["access_token"])["ceiling"] == "read"
    assert lent.err == ""
