"""What a new user types in the first five minutes, for real and without a single environment variable."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import run_as_operator, run_deputize


@pytest.mark.requirement("NEW-7")
def test_a_first_call_prints_its_result_and_how_it_came_about(shop_project: Path) -> None:
    done = run_deputize("call", "hello.greet", "name=Ana", folder=shop_project)

    assert (done.code, done.out) == (0, '"Hello, Ana!"\n')
    assert re.fullmatch(
        r"allowed by token-scopes, reads-are-free · (\d+|<1) ms · trace …[0-9a-f]{6} · call [0-9a-f-]{36}\n", done.err
    )


def test_a_missing_argument_shows_a_call_that_works(shop_project: Path) -> None:
    done = run_deputize("call", "hello.greet", folder=shop_project)

    assert done.code == 1
    assert "✗ The arguments do not match the tool's schema (E3301)" in done.err
    assert "name is required" in done.err
    assert "Example: deputize call hello.greet name=Ana" in done.err


@pytest.mark.nightly
def test_a_misspelt_argument_and_a_misspelt_tool_are_guessed(shop_project: Path) -> None:
    assert "did you mean name?" in run_deputize("call", "hello.greet", "nam=Ana", folder=shop_project).err
    assert "did you mean hello.greet?" in run_deputize("call", "hello.gret", "name=Ana", folder=shop_project).err


def test_the_same_key_again_does_nothing_again(shop_project: Path) -> None:
    words = ("call", "hello.remember", "text=buy milk", "--key", "monday")
    first = run_deputize(*words, folder=shop_project)
    again = run_deputize(*words, folder=shop_project)
    other = run_deputize("call", "hello.remember", "text=buy bread", "--key", "monday", folder=shop_project)

    assert first.code == again.code == 0
    assert first.out == again.out
    assert "key monday" in first.err
    assert "replayed" not in first.err
    assert "replayed: nothing was repeated" in again.err
    assert (shop_project / "notes.txt").read_text().count("buy milk") == 1
    assert other.code == 1
    assert "Idempotency key was used for another request (E3007)" in other.err


@pytest.mark.requirement("INV-9")
def test_calls_of_a_file_are_made_in_one_request(shop_project: Path) -> None:
    lines = [
        '{"tool": "hello.greet", "arguments": {"name": "Ana"}}',
        '{"tool": "hello.forget", "arguments": {"number": 99}}',
        '{"tool": "hello.greet", "arguments": {"name": "Bo"}, "depends_on": [1]}',
    ]
    (shop_project / "calls.jsonl").write_text("\n".join(lines))
    done = run_deputize("call", "--batch", "calls.jsonl", folder=shop_project)
    piped = run_deputize("call", "--batch", "-", "--json", folder=shop_project, stdin=f"[{lines[0]}]")

    assert done.code == 1
    assert [line.split("  ")[:3] for line in done.out.splitlines()] == [
        ["0", "hello.greet", "succeeded"],
        ["1", "hello.forget", "validation_failed"],
        ["2", "hello.greet", "canceled"],
    ]
    assert (piped.code, piped.json["results"][0]["envelope"]["result"]) == (0, "Hello, Ana!")
    mixed = run_deputize("call", "--batch", "calls.jsonl", "--dry-run", folder=shop_project)
    assert (mixed.code, "leave out the other arguments" in mixed.err) == (2, True)


@pytest.mark.nightly
def test_a_write_without_a_key_gets_one_that_is_printed(shop_project: Path) -> None:
    done = run_deputize("call", "hello.remember", "text=tea", folder=shop_project)

    assert re.search(r"key [0-9a-f-]{36}", done.err)


@pytest.mark.nightly
def test_values_are_read_by_the_schema_and_objects_as_json(shop_project: Path) -> None:
    assert run_deputize("call", "hello.remember", "text=1", folder=shop_project).json["text"] == "1"
    assert run_deputize("call", "hello.greet", "--args", '{"name": "Ana"}', folder=shop_project).code == 0
    assert (
        run_deputize("call", "hello.greet", "--args", "-", folder=shop_project, stdin='{"name": "Bo"}').out
        == '"Hello, Bo!"\n'
    )


def test_what_cannot_be_taken_back_asks_until_a_policy_permits_it(shop_project: Path) -> None:
    run_deputize("call", "hello.remember", "text=1", folder=shop_project)
    asked = run_deputize("call", "hello.forget", "number=1", folder=shop_project)
    own = '@id("notes-may-go")\npermit (principal, action, resource == Tool::"hello.forget");\n'
    (shop_project / "policies" / "own.cedar").write_text(own)
    put = run_as_operator("policy", "put", folder=shop_project)

    assert (asked.code, asked.out, put.code) == (3, "", 0)
    assert "⏸ Approval required: destructive-needs-human (policies/default.cedar:24): Irreversible" in asked.err
    assert run_deputize("call", "hello.forget", "number=1", folder=shop_project).code == 0
    assert "there is no note 99" in run_deputize("call", "hello.forget", "number=99", folder=shop_project).err


def test_json_is_the_whole_envelope_and_nothing_else(shop_project: Path) -> None:
    good = run_deputize("call", "hello.greet", "name=Ana", "--json", folder=shop_project)
    bad = run_deputize("call", "hello.greet", "--json", folder=shop_project)

    assert good.json["result"] == "Hello, Ana!"
    assert good.json["decision"]["rules"] == ["token-scopes", "reads-are-free"]
    assert good.err == bad.err == ""
    assert (bad.code, bad.json["error"]["number"]) == (1, "E3301")


@pytest.mark.nightly
def test_tools_are_listed_searched_shown_and_versioned(shop_project: Path) -> None:
    listed = run_deputize("tool", "list", folder=shop_project)
    shown = run_deputize("tool", "show", "hello.forget", folder=shop_project).out

    assert [name in listed.out for name in ("hello.greet", "hello.remember", "hello.forget")] == [True] * 3
    assert "hello.greet" in run_deputize("tool", "search", "say", "hello", folder=shop_project).out
    assert "may delete notes/{number}" in shown
    assert "example: deputize call hello.forget number=1" in shown
    assert (
        run_deputize("tool", "versions", "hello.greet", "--json", folder=shop_project).json["versions"][0]["version"]
        == "0.1.0"
    )


@pytest.mark.nightly
def test_calls_can_be_shown_and_watched_but_not_canceled_after_their_end(shop_project: Path) -> None:
    made = run_deputize("call", "hello.remember", "text=look back", "--json", folder=shop_project).json["call_id"]

    assert made in run_deputize("calls", folder=shop_project).out
    eve = run_deputize("token", "--user", "eve", folder=shop_project).out.strip()
    assert made not in run_deputize("calls", "--token", eve, folder=shop_project).out
    assert made not in run_deputize("calls", folder=shop_project, env={"DEPUTIZE_TOKEN": eve}).out
    assert made in run_deputize("calls", "list", "--limit", "1", folder=shop_project).out
    assert run_deputize("calls", "show", made, "--json", folder=shop_project).json["state"] == "succeeded"
    assert run_deputize("calls", "watch", made, folder=shop_project).out.startswith("succeeded")
    canceled = run_deputize("calls", "cancel", made, folder=shop_project)
    assert (canceled.code, "E3705" in canceled.err) == (1, True)
    unknown = run_deputize("calls", "show", "nonsense", folder=shop_project)
    assert (unknown.code, "Call not found" in unknown.err) == (1, True)


@pytest.mark.nightly
def test_a_token_can_be_narrower_than_the_developers(shop_project: Path) -> None:
    narrow = run_deputize("token", "--user", "ana", "--agent", "bot", "--tool", "hello.greet@^0.1", folder=shop_project)
    token = narrow.out.strip()

    assert "Only deputize dev accepts this development token." in narrow.err
    assert run_deputize("call", "hello.greet", "name=Ana", "--token", token, folder=shop_project).code == 0
    hidden = run_deputize("call", "hello.remember", "text=x", folder=shop_project, env={"DEPUTIZE_TOKEN": token})
    assert (hidden.code, "Tool not found" in hidden.err) == (1, True)
    poor = run_deputize("token", "--user", "ana", folder=shop_project).out.strip()
    refused = run_deputize("call", "hello.remember", "text=x", "--token", poor, folder=shop_project)
    assert "rule: token-scopes" in refused.err
    assert "notes:write" in refused.err


@pytest.mark.nightly
def test_a_tool_is_registered_from_a_manifest_and_retired(shop_project: Path) -> None:
    manifest = {
        "name": "extra.greet", "version": "1.0.0", "description": "Says hello under another name.", "effects": "read",
        "handler": {"target": "tools.hello:greet"}, "auth": {}, "timeout": "standard", "idempotency": "idempotent",
        "input_schema": {
            "type": "object", "additionalProperties": False, "required": ["name"],
            "properties": {"name": {"type": "string", "description": "Who.", "examples": ["Ana"]}},
        },
        "output_schema": {"type": "string"}, "examples": [{"name": "Ana"}],
    }  # fmt: skip
    (shop_project / "extra.json").write_text(json.dumps(manifest))

    assert "✓ Registered extra.greet" in run_as_operator("tool", "register", "extra.json", folder=shop_project).out
    assert "Already registered" in run_deputize("tool", "register", "extra.json", folder=shop_project).out
    assert run_deputize("call", "extra.greet", "name=Ana", folder=shop_project).code == 0
    assert "✓ Retired" in run_deputize("tool", "retire", "extra.greet", "1.0.0", folder=shop_project).out
    assert "E3104" in run_deputize("call", "extra.greet", "name=Ana", "--version", "1.0.0", folder=shop_project).err


def test_the_doctor_finds_nothing_broken_in_a_fresh_project(shop_project: Path) -> None:
    done = run_deputize("doctor", "--json", folder=shop_project)
    found = {each["check"]: each["status"] for each in done.json["findings"]}

    assert done.code == 0
    assert found["database"] == found["schema"] == found["row-level security"] == found["roles"] == "good"
    assert found["partitions"] == found["clock"] == found["master key"] == "good"
    # The local database belongs to the developer, whose login may change everything.
    assert found["audit is append-only"] == "skipped"
    assert "✓ No problems found" in run_deputize("doctor", folder=shop_project).out


@pytest.mark.nightly
def test_commands_find_the_gateway_from_below_the_project(shop_project: Path) -> None:
    assert run_deputize("call", "hello.greet", "name=Ana", folder=shop_project / "tools").code == 0


@pytest.mark.nightly
def test_tab_completes_commands_and_tools(shop_project: Path) -> None:
    def complete_line(line: str) -> list[str]:
        env = {"_DEPUTIZE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        return run_deputize(folder=shop_project, env=env).out.split()

    assert complete_line("deputize to") == ["token", "tool"]
    assert complete_line("deputize call hello.g") == ["hello.greet"]


@pytest.mark.nightly
def test_secrets_lie_in_files_of_their_owner_only(shop_project: Path) -> None:
    state = shop_project / ".deputize"

    for name in ("token", "master.key", "development-issuer.pem", "pg.json", "dev.json"):
        assert os.stat(state / name).st_mode & 0o077 == 0, name
    assert ".deputize/" in (shop_project / ".gitignore").read_text()
