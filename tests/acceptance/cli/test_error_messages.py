"""Whatever a person gets wrong, the answer is a sentence with the way out, never a traceback."""

from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import run_deputize

pytestmark = pytest.mark.nightly


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert run_deputize("init", ".", folder=tmp_path).code == 0
    return tmp_path


def test_init_says_what_it_made_and_overwrites_nothing(tmp_path: Path) -> None:
    first = run_deputize("init", "shop", folder=tmp_path)
    again = run_deputize("init", "shop", folder=tmp_path)

    made = "deputize.toml, tools/hello.py, policies/default.cedar, policies/tests/default.yaml, .gitignore"
    assert first.out == f"✓ Created {made}\n  Next: cd shop && deputize dev\n"
    assert again.code == 2
    assert "never overwrites a file" in again.err


def test_init_keeps_a_gitignore_that_is_there(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")

    assert "gitignore" not in run_deputize("init", folder=tmp_path).out
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_what_init_made_is_admitted(folder: Path) -> None:
    done = run_deputize("tool", "check", "tools/hello.py", folder=folder)

    assert (done.code, done.out.count("can be registered")) == (0, 3)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("call", "hello.greet"), 2, "start one with deputize dev"),
        (("call", "hello.greet", "--url", "nonsense", "--token", "x"), 2, "write it like http://127.0.0.1:7070"),
        (("call", "hello.greet", "--url", "http://[::1", "--token", "x"), 2, "is not a gateway URL"),
        (("call", "hello.greet", "--url", "http://127.0.0.1:abc", "--token", "x"), 2, "is not a gateway URL"),
        (("call", "hello.greet", "--url", "http://127.0.0.1:1", "--token", "x"), 2, "nothing listens there"),
        (("call", "hello.greet", "--url", "http://127.0.0.1:1"), 2, "set DEPUTIZE_TOKEN or --token"),
        (("call", "hello.greet", "--url", "http://127.0.0.1:1", "--token", "${TOKEN}"), 2, "was not expanded"),
        (("call",), 2, "Name the tool to call"),
        (("sandboxes", "serve", "--uid-range", "5"), 2, "must be FIRST:COUNT"),
        (("servers", "pin"), 2, "✗ Missing argument 'SERVER'."),
        (("servers", "pin"), 2, "More: deputize servers pin --help"),
        (("cal",), 2, "Did you mean 'call'"),
        (("serve",), 2, "set url under [database]"),
        (("migrate",), 2, "No database is configured"),
        (("keys", "status"), 2, "In development, start deputize dev first"),
        (("keys", "reseal", "--all"), 2, "In development, start deputize dev first"),
        (("tool", "check", "nowhere.py"), 2, "nowhere.py does not exist"),
        (("tool", "check", "tools"), 2, "tools is not a file"),
        (("tool", "diff", "tools/hello.py"), 2, "Missing argument 'NEW'"),
        (("tool", "diff", "tools/hello.py", "nowhere.py"), 2, "nowhere.py does not exist"),
        (("tool", "diff", "hello.greet", "0.1.0", "0.2.0"), 2, "start one with deputize dev"),
        (("token", "--tool", "hello.greet@one"), 2, "is not a version range"),
        (("token", "--scope", "two words"), 2, "use printable characters without spaces"),
        (("token", "--tenant", "Not A Tenant"), 2, "is not a valid tenant name"),
        (("token", "--minutes", "0"), 2, "Invalid value for '--minutes'"),
        (("tool", "surface", "--status", "bloked"), 2, "Invalid value for '--status'"),
        (("token", "exchange", "--agent", "bot", "--ceiling", "wrte"), 2, "Invalid value for '--ceiling'"),
        (("token", "--scope", "notes:write", "exchange", "--agent", "bot"), 2, "write it after exchange"),
        (("calls", "--token", "x", "list"), 2, "write it after list"),
        (("policy", "check", "nothing.cedar"), 2, "nothing.cedar does not exist"),
        (("policy", "test", "nothing.yaml"), 2, "nothing.yaml does not exist: check the file name."),
        (("policy", "explain", "--tool", "nothing.such"), 2, "there is no tool nothing.such in this project."),
        (("policy", "explain", "--tool", "hello.greet", "--time", "noon"), 2, "for example 2026-11-15T09:00"),
    ],
)
def test_a_user_error_is_reported_with_its_fix(folder: Path, words: tuple[str, ...], code: int, sentence: str) -> None:
    done = run_deputize(*words, folder=folder)

    assert (done.code, sentence in done.output) == (code, True), done.output


@pytest.mark.parametrize("command", ["dev", "token"])
def test_outside_a_project_the_first_step_is_named(tmp_path: Path, command: str) -> None:
    done = run_deputize(command, folder=tmp_path)

    assert (done.code, "create a project with deputize init" in done.err) == (2, True)


@pytest.mark.parametrize("command", ["dev", "serve", "migrate", "token"])
def test_wrong_settings_are_reported_line_by_line(folder: Path, command: str) -> None:
    with (folder / "deputize.toml").open("a") as file:
        file.write("\n[server]\nprot = 7\n")
    done = run_deputize(command, folder=folder)

    assert done.code == 2
    assert "server.prot is not a setting; did you mean server.port?" in done.err


@pytest.mark.parametrize("words", [("dev",), ("doctor",), ("call", "hello.greet"), ("import", ".mcp.json")])
def test_settings_that_are_not_text_are_reported(folder: Path, words: tuple[str, ...]) -> None:
    (folder / ".mcp.json").write_text('{"mcpServers": {}}')
    (folder / "deputize.toml").write_bytes(b"\xff\xfe")
    done = run_deputize(*words, folder=folder)

    assert done.code in (1, 2), done.output
    assert "is not UTF-8 text" in done.err or "start one with deputize dev" in done.err


@pytest.mark.parametrize("command", ["dev", "token"])
def test_a_state_folder_that_is_a_file_is_reported(folder: Path, command: str) -> None:
    done = run_deputize(command, folder=folder, env={"DEPUTIZE_FOLDER": "deputize.toml"})

    assert (done.code, "The state folder deputize.toml is a file" in done.err) == (2, True)


def test_with_json_a_mistake_is_json_too(folder: Path) -> None:
    done = run_deputize("call", "hello.greet", "--json", folder=folder)

    assert (done.code, done.err) == (2, "")
    assert "start one with deputize dev" in done.json["error"]["message"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("call", "--json"), "Name the tool to call"),
        (("cal", "--json"), "Did you mean 'call'"),
        (("call", "--kee", "x", "--json"), "No such option: --kee"),
        (("switch", "off", "tol", "x", "--json"), "'tol' is not one of"),
    ],
)
def test_with_json_a_misspelt_command_is_json_too(folder: Path, words: tuple[str, ...], sentence: str) -> None:
    done = run_deputize(*words, folder=folder)

    assert (done.code, done.err) == (2, "")
    assert sentence in done.json["error"]["message"]


def test_policies_that_cannot_take_force_stop_the_start_once_each(folder: Path) -> None:
    (folder / "policies" / "own.cedar").write_text('@id("x")\npermit (principal, action, resource) when { nothing };\n')
    done = run_deputize("dev", "--port", "0", folder=folder)

    assert done.code == 2
    assert "✗ The policies in policy.files are invalid. Fix these errors:\n    policies/own.cedar:1: " in done.err
    assert done.err.count("own.cedar") == 1


def test_policy_files_that_are_not_text_are_reported(folder: Path) -> None:
    (folder / "policies" / "own.cedar").write_bytes(b"\xff\xfe\x00")
    (folder / "policies" / "tests" / "own.yaml").write_bytes(b"\xff\xfe\x00")

    assert "own.cedar cannot be read (it is not UTF-8 text at byte 0; save it as UTF-8)" in (
        run_deputize("policy", "check", folder=folder).err
    )
    (folder / "policies" / "own.cedar").unlink()
    assert "own.yaml cannot be read (it is not UTF-8 text" in run_deputize("policy", "test", folder=folder).err


def test_mistakes_in_cases_are_counted_as_such(folder: Path) -> None:
    (folder / "policies" / "tests" / "own.yaml").write_text(
        "cases:\n  - name: a\n    tol: hello.greet\n    expect: ask\n"
    )
    done = run_deputize("policy", "test", folder=folder)

    assert done.code == 1
    assert "policies/tests/own.yaml:3: tol is not a field of a case" in done.out
    assert "✗ 2 errors in the test cases: fix them and run deputize policy test again" in done.err


def test_without_files_the_default_set_is_named(tmp_path: Path) -> None:
    done = run_deputize("policy", "check", folder=tmp_path)

    asking = "reversible-writes-ask, destructive-needs-human, critical-in-production-asks"
    assert done.out.splitlines() == [
        "✓ 5 rules in the default set, because no files are named, checked against 0 tools",
        f"  approval by approvers: {asking}",
    ]


@pytest.mark.parametrize(
    ("written", "check", "todo"),
    [
        ('[vault]\nkind = "openbao"\n', "vault", "set vault.address and vault.token_file in deputize.toml too"),
        ('[limits]\nredis_url = "redis://127.0.0.1:1/0"\n', "counters", "follows its when_lost setting"),
        ('[limits]\nredis_url = "nonsense"\n', "counters", "write it like redis://"),
        ('[[hooks]]\nname = "guard"\nfunction = "hooks/check.py:guard"\n', "hooks", "correct the name"),
    ],
)
def test_doctor_checks_the_policy_decision_settings(folder: Path, written: str, check: str, todo: str) -> None:
    with (folder / "deputize.toml").open("a") as file:
        file.write(f"\n{written}")
    done = run_deputize("doctor", "--json", folder=folder)
    broken = {each["check"]: each["todo"] for each in done.json["findings"] if each["status"] == "broken"}

    assert done.code == 1
    assert list(broken) == [check]
    assert todo in broken[check]


def test_doctor_reads_the_policies_and_probes_the_decision_point(folder: Path) -> None:
    settings = folder / "deputize.toml"
    asked = settings.read_text().replace("[policy]", '[policy]\nengine = "both"\nauthzen_url = "http://127.0.0.1:1"')
    settings.write_text(asked)
    (folder / "policies" / "own.cedar").write_text('@id("x")\npermit (principal, action, resource) when { nothing };\n')
    done = run_deputize("doctor", "--json", folder=folder)
    broken = {each["check"]: each["todo"] for each in done.json["findings"] if each["status"] == "broken"}

    assert done.code == 1
    assert list(broken) == ["policies", "decision point"]
    assert "policies/own.cedar:1" in broken["policies"]
    assert "every call is denied" in broken["decision point"]


def test_an_invalid_address_is_reported_before_the_gateway_listens(folder: Path) -> None:
    settings = folder / "deputize.toml"
    settings.write_text(settings.read_text().replace("[policy]", '[policy]\nengine = "both"\nauthzen_url = "nonsense"'))

    assert "write it like https://pdp.example.com" in run_deputize("dev", "--port", "0", folder=folder).err


def test_a_check_tells_every_reason_and_needs_no_gateway(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("name: a.b\nversion: one\ndescripton: x\neffects: read\n")
    done = run_deputize("tool", "check", "one.yaml", "--json", folder=tmp_path)
    reasons = done.json["refused"][0]["reasons"]

    assert done.code == 1
    assert any("one.yaml:2: version" in each for each in reasons)
    assert any("did you mean description?" in each for each in reasons)


def test_the_doctor_exits_with_one_when_something_is_broken(folder: Path) -> None:
    env = {"DEPUTIZE_DATABASE__URL": "postgresql://u:hidden@127.0.0.1:1/d"}
    done = run_deputize("doctor", folder=folder, env=env)

    assert done.code == 1
    assert "Nothing listens at 127.0.0.1:1/d" in done.out
    assert "hidden" not in done.output


@pytest.mark.requirement("INV-6")
def test_a_hook_that_cannot_be_had_stops_the_start(folder: Path) -> None:
    with (folder / "deputize.toml").open("a") as file:
        file.write('\n[[hooks]]\nname = "guard"\nfunction = "hooks/check.py:guard"\n')
    done = run_deputize("dev", "--port", "0", folder=folder)

    assert done.code == 2
    assert "The hook guard cannot be loaded: there is no file hooks/check.py in" in done.err
    assert "correct the name in deputize.toml" in done.err
