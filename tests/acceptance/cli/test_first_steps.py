"""What a new user types in the first five minutes, for real and without a single environment variable."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.acceptance.cli.shell import deputize


@pytest.mark.requirement("NEW-7")
def test_a_first_call_prints_its_result_and_how_it_came_about(shop: Path) -> None:
    done = deputize("call", "hello.greet", "name=Ana", folder=shop)

    assert (done.code, done.out) == (0, '"Hello, Ana!"\n')
    assert re.fullmatch(
        r"allowed by token-scopes, reads-are-free · (\d+|<1) ms · trace …[0-9a-f]{6} · call [0-9a-f-]{36}\n", done.err
    )


def test_a_missing_argument_shows_a_call_that_works(shop: Path) -> None:
    done = deputize("call", "hello.greet", folder=shop)

    assert done.code == 1
    assert "✗ The arguments do not fit the tool's schema (E3301)" in done.err
    assert "name is required" in done.err
    assert "a call that works: deputize call hello.greet name=Ana" in done.err


def test_a_misspelt_argument_and_a_misspelt_tool_are_guessed(shop: Path) -> None:
    assert "did you mean name?" in deputize("call", "hello.greet", "nam=Ana", folder=shop).err
    assert "did you mean hello.greet?" in deputize("call", "hello.gret", "name=Ana", folder=shop).err


def test_the_same_key_again_does_nothing_again(shop: Path) -> None:
    words = ("call", "hello.remember", "text=buy milk", "--key", "monday")
    first = deputize(*words, folder=shop)
    again = deputize(*words, folder=shop)
    other = deputize("call", "hello.remember", "text=buy bread", "--key", "monday", folder=shop)

    assert first.code == again.code == 0
    assert first.out == again.out
    assert "key monday" in first.err
    assert "replayed" not in first.err
    assert "replayed, nothing was done again" in again.err
    assert (shop / "notes.txt").read_text().count("buy milk") == 1
    assert other.code == 1
    assert "Idempotency key was used for another request (E3007)" in other.err


def test_a_write_without_a_key_gets_one_that_is_printed(shop: Path) -> None:
    done = deputize("call", "hello.remember", "text=tea", folder=shop)

    assert re.search(r"key [0-9a-f-]{36}", done.err)


def test_values_are_read_by_the_schema_and_objects_as_json(shop: Path) -> None:
    assert deputize("call", "hello.remember", "text=1", folder=shop).json["text"] == "1"
    assert deputize("call", "hello.greet", "--args", '{"name": "Ana"}', folder=shop).code == 0
    assert deputize("call", "hello.greet", "--args", "-", folder=shop, typed='{"name": "Bo"}').out == '"Hello, Bo!"\n'


def test_what_cannot_be_taken_back_asks_until_a_policy_permits_it(shop: Path) -> None:
    deputize("call", "hello.remember", "text=1", folder=shop)
    asked = deputize("call", "hello.forget", "number=1", folder=shop)
    own = '@id("notes-may-go")\npermit (principal, action, resource == Tool::"hello.forget");\n'
    (shop / "policies" / "own.cedar").write_text(own)
    put = deputize("policy", "put", folder=shop)

    assert (asked.code, asked.out, put.code) == (3, "", 0)
    assert "⏸ needs approval: destructive-needs-human (policies/default.cedar:24): What cannot be" in asked.err
    assert deputize("call", "hello.forget", "number=1", folder=shop).code == 0
    assert "there is no note 99" in deputize("call", "hello.forget", "number=99", folder=shop).err


def test_json_is_the_whole_envelope_and_nothing_else(shop: Path) -> None:
    good = deputize("call", "hello.greet", "name=Ana", "--json", folder=shop)
    bad = deputize("call", "hello.greet", "--json", folder=shop)

    assert good.json["result"] == "Hello, Ana!"
    assert good.json["decision"]["rules"] == ["token-scopes", "reads-are-free"]
    assert good.err == bad.err == ""
    assert (bad.code, bad.json["error"]["number"]) == (1, "E3301")


def test_tools_are_listed_searched_shown_and_versioned(shop: Path) -> None:
    listed = deputize("tool", "list", folder=shop)
    shown = deputize("tool", "show", "hello.forget", folder=shop).out

    assert [name in listed.out for name in ("hello.greet", "hello.remember", "hello.forget")] == [True] * 3
    assert "hello.greet" in deputize("tool", "search", "say", "hello", folder=shop).out
    assert "may delete notes/{number}" in shown
    assert "try: deputize call hello.forget number=1" in shown
    assert deputize("tool", "versions", "hello.greet", "--json", folder=shop).json["versions"][0]["version"] == "0.1.0"


def test_calls_are_looked_back_at_watched_and_not_canceled_after_their_end(shop: Path) -> None:
    made = deputize("call", "hello.remember", "text=look back", "--json", folder=shop).json["call_id"]

    assert made in deputize("calls", folder=shop).out
    eve = deputize("token", "--user", "eve", folder=shop).out.strip()
    assert made not in deputize("calls", "--token", eve, folder=shop).out
    assert made not in deputize("calls", folder=shop, env={"DEPUTIZE_TOKEN": eve}).out
    assert made in deputize("calls", "list", "--limit", "1", folder=shop).out
    assert deputize("calls", "show", made, "--json", folder=shop).json["state"] == "succeeded"
    assert deputize("calls", "watch", made, folder=shop).out.startswith("succeeded")
    canceled = deputize("calls", "cancel", made, folder=shop)
    assert (canceled.code, "E3705" in canceled.err) == (1, True)
    unknown = deputize("calls", "show", "nonsense", folder=shop)
    assert (unknown.code, "No such call" in unknown.err) == (1, True)


def test_a_token_can_be_narrower_than_the_developers(shop: Path) -> None:
    narrow = deputize("token", "--user", "ana", "--agent", "bot", "--tool", "hello.greet@^0.1", folder=shop)
    token = narrow.out.strip()

    assert "deputize serve refuses it" in narrow.err
    assert deputize("call", "hello.greet", "name=Ana", "--token", token, folder=shop).code == 0
    hidden = deputize("call", "hello.remember", "text=x", folder=shop, env={"DEPUTIZE_TOKEN": token})
    assert (hidden.code, "No such tool" in hidden.err) == (1, True)
    poor = deputize("token", "--user", "ana", folder=shop).out.strip()
    refused = deputize("call", "hello.remember", "text=x", "--token", poor, folder=shop)
    assert "rule: token-scopes" in refused.err
    assert "notes:write" in refused.err


def test_a_tool_is_registered_from_a_manifest_and_retired(shop: Path) -> None:
    manifest = {
        "name": "extra.greet", "version": "1.0.0", "description": "Says hello under another name.", "effects": "read",
        "handler": {"target": "tools.hello:greet"}, "auth": {}, "timeout": "interactive", "idempotency": "idempotent",
        "input_schema": {
            "type": "object", "additionalProperties": False, "required": ["name"],
            "properties": {"name": {"type": "string", "description": "Who.", "examples": ["Ana"]}},
        },
        "output_schema": {"type": "string"}, "examples": [{"name": "Ana"}],
    }  # fmt: skip
    (shop / "extra.json").write_text(json.dumps(manifest))

    assert "registered" in deputize("tool", "register", "extra.json", folder=shop).out
    assert "exactly like this" in deputize("tool", "register", "extra.json", folder=shop).out
    assert deputize("call", "extra.greet", "name=Ana", folder=shop).code == 0
    assert "is retired" in deputize("tool", "retire", "extra.greet", "1.0.0", folder=shop).out
    assert "E3104" in deputize("call", "extra.greet", "name=Ana", "--version", "1.0.0", folder=shop).err


def test_the_doctor_finds_nothing_broken_in_a_fresh_project(shop: Path) -> None:
    done = deputize("doctor", "--json", folder=shop)
    found = {each["check"]: each["status"] for each in done.json["findings"]}

    assert done.code == 0
    assert found["database"] == found["schema"] == found["row-level security"] == found["roles"] == "good"
    assert found["audit is append-only"] == found["partitions"] == found["clock"] == found["master key"] == "good"
    assert "✓ nothing is broken" in deputize("doctor", folder=shop).out


def test_commands_find_the_gateway_from_below_the_project(shop: Path) -> None:
    assert deputize("call", "hello.greet", "name=Ana", folder=shop / "tools").code == 0


def test_tab_completes_commands_and_tools(shop: Path) -> None:
    def completed(line: str) -> list[str]:
        env = {"_DEPUTIZE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return deputize(folder=shop, env=env).out.split()

    assert completed("deputize to") == ["token", "tool"]
    assert completed("deputize call hello.g") == ["hello.greet"]


def test_secrets_lie_in_files_of_their_owner_only(shop: Path) -> None:
    state = shop / ".deputize"

    for name in ("token", "master.key", "development-issuer.pem", "pg.json", "dev.json"):
        assert os.stat(state / name).st_mode & 0o077 == 0, name
    assert ".deputize/" in (shop / ".gitignore").read_text()
