"""Whatever a person gets wrong, the answer is a sentence with the way out, never a traceback."""

from pathlib import Path

import pytest

from tests.acceptance.cli.shell import deputize


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert deputize("init", ".", folder=tmp_path).code == 0
    return tmp_path


def test_init_says_what_it_made_and_overwrites_nothing(tmp_path: Path) -> None:
    first = deputize("init", "shop", folder=tmp_path)
    again = deputize("init", "shop", folder=tmp_path)

    assert first.out == "✓ deputize.toml, tools/hello.py, .gitignore\n  next: cd shop && deputize dev\n"
    assert again.code == 2
    assert "nothing is overwritten" in again.err


def test_init_keeps_a_gitignore_that_is_there(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine\n")

    assert "gitignore" not in deputize("init", folder=tmp_path).out
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_what_init_made_is_admitted(folder: Path) -> None:
    done = deputize("tool", "check", "tools/hello.py", folder=folder)

    assert (done.code, done.out.count("would be admitted")) == (0, 3)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("call", "hello.greet"), 2, "start one with deputize dev"),
        (("call", "hello.greet", "--url", "nonsense", "--token", "x"), 2, "write it like http://127.0.0.1:7070"),
        (("call", "hello.greet", "--url", "http://127.0.0.1:1", "--token", "x"), 2, "nothing listens there"),
        (("call", "hello.greet", "--url", "http://127.0.0.1:1"), 2, "set DEPUTIZE_TOKEN or --token"),
        (("call", "hello.greet", "--url", "http://127.0.0.1:1", "--token", "${TOKEN}"), 2, "nobody expanded"),
        (("call",), 2, "Missing argument 'NAME'"),
        (("cal",), 2, "Did you mean 'call'"),
        (("serve",), 2, "put url under [database]"),
        (("migrate",), 2, "No database to migrate"),
        (("tool", "check", "nowhere.py"), 2, "There is no file"),
        (("token", "--tool", "hello.greet@one"), 2, "is no way to ask for a version"),
        (("token", "--scope", "two words"), 2, "cannot be a scope"),
        (("token", "--tenant", "Not A Tenant"), 2, "cannot be a tenant"),
        (("token", "--minutes", "0"), 2, "Invalid value for '--minutes'"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(folder: Path, words: tuple[str, ...], code: int, sentence: str) -> None:
    done = deputize(*words, folder=folder)

    assert (done.code, sentence in done.said) == (code, True), done.said


@pytest.mark.parametrize("command", ["dev", "token"])
def test_outside_a_project_the_first_step_is_named(tmp_path: Path, command: str) -> None:
    done = deputize(command, folder=tmp_path)

    assert (done.code, "run deputize init" in done.err) == (2, True)


@pytest.mark.parametrize("command", ["dev", "serve", "migrate", "token"])
def test_wrong_settings_are_told_line_by_line(folder: Path, command: str) -> None:
    with (folder / "deputize.toml").open("a") as file:
        file.write("\n[server]\nprot = 7\n")
    done = deputize(command, folder=folder)

    assert done.code == 2
    assert "server.prot is not a setting; did you mean server.port?" in done.err


def test_with_json_a_mistake_is_json_too(folder: Path) -> None:
    done = deputize("call", "hello.greet", "--json", folder=folder)

    assert (done.code, done.err) == (2, "")
    assert "start one with deputize dev" in done.json["error"]["message"]


def test_a_check_tells_every_reason_and_needs_no_gateway(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("name: a.b\nversion: one\ndescripton: x\neffects: read\n")
    done = deputize("tool", "check", "one.yaml", "--json", folder=tmp_path)
    reasons = done.json["refused"][0]["reasons"]

    assert done.code == 1
    assert any("one.yaml:2: version" in each for each in reasons)
    assert any("did you mean description?" in each for each in reasons)


def test_the_doctor_exits_with_one_when_something_is_broken(folder: Path) -> None:
    env = {"DEPUTIZE_DATABASE__URL": "postgresql://u:hidden@127.0.0.1:1/d"}
    done = deputize("doctor", folder=folder, env=env)

    assert done.code == 1
    assert "Nothing listens at 127.0.0.1:1/d" in done.out
    assert "hidden" not in done.said


@pytest.mark.requirement("INV-6")
def test_a_hook_that_cannot_be_had_stops_the_start(folder: Path) -> None:
    with (folder / "deputize.toml").open("a") as file:
        file.write('\n[[hooks]]\nname = "guard"\nfunction = "hooks/check.py:guard"\n')
    done = deputize("dev", "--port", "0", folder=folder)

    assert done.code == 2
    assert "The hook guard cannot be used: there is no file hooks/check.py in" in done.err
    assert "correct the name in deputize.toml" in done.err
