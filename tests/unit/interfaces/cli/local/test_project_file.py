"""A mistake in the settings is one sentence that names its place and the way out."""

from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.project_file import enter_project, find_state_folder, load_settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _config_error_text(text: str) -> str:
    Path("deputize.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[server]\nprot = 7\n", "deputize.toml:2: server.prot is not a setting; did you mean server.port?"),
        ("[sever]\nport = 7\n", "deputize.toml:1: sever is not a setting; did you mean server?"),
        (
            "[tools]\nxyz = 7\n",
            "deputize.toml:2: tools.xyz is not a setting; "
            "known settings: python, manifests, tenant, shared_with, tests.",
        ),
        ("server.port = 99999\n", "deputize.toml:1: server.port is invalid: input should be less than"),
        (
            '[[identity.issuers]]\nissuer = "x"\naudience = "y"\ntenent = "z"\n',
            "deputize.toml:4: identity.issuers.tenent is not a setting; did you mean identity.issuers.tenant?",
        ),
        ('[[identity.issuers]]\naudience = "x"\n', "deputize.toml:1: identity.issuers.issuer is missing; add it."),
        (
            '[[servers]]\nname = "a"\nurl = "https://a.example/"\n\n'
            '[[servers]]\nname = "b"\ncommand = ["b"]\nuid = 7\n',
            "deputize.toml:5: server b: this program runs in a sandbox, whose supervisor chooses its user: remove uid, "
            "or set sandbox = false if you trust the program.",
        ),
        (
            '[[servers]]\nname = "a"\ncommand = ["a"]\n[servers.breaker]\nwindow_seconds = 60\n'
            '[[servers]]\nname = "b"\ncommand = ["b"]\n[servers.breaker]\nwindow_seconds = 0\n',
            "deputize.toml:10: server b: breaker.window_seconds is invalid: input should be greater than or equal to 1",
        ),
        (
            '[[servers]]\nname = "a"\ncommand = ["a"]\nfolders = [{ path = "x" }, { pth = "y" }]\n',
            "deputize.toml:4: server a: folders.pth is not a setting; did you mean folders.path?",
        ),
        (
            '[[services]]\nname = "a"\n[[services]]\nname = "b"\nkinds = "openapi"\n',
            "deputize.toml:5: service b: kinds is not a setting; did you mean kind?",
        ),
        (
            '[[servers]]\nname = "a"\ncommand = ["a"]\nhosts = ["b.example:443", "c.example"]\n',
            "deputize.toml:4: server a: hosts cannot be 'c.example'; expected: hosts that the program may connect to "
            'from its sandbox, as in "api.example.com:443"',
        ),
        (
            '[builtin.browser]\nhosts = ["https://shop.example/"]\n',
            "deputize.toml:2: builtin.browser.hosts cannot be 'https://shop.example/'; expected: hosts that pages may "
            "connect to, as shop.example.com, *.example.com for every host below it, or with a port;",
        ),
        (
            '[builtin.sql]\nurl = "sqlite:///x"\ntables = ["orders"]\n',
            "builtin.sql.tables cannot be 'orders'; expected: tables and views that statements may name, as "
            "schema.table or schema.*.",
        ),
        ("port = [\n", "deputize.toml is not valid TOML:"),
    ],
)
def test_a_mistake_in_the_file_names_its_line_and_the_fix(text: str, sentence: str) -> None:
    assert sentence in _config_error_text(text)


def test_every_mistake_has_a_sentence_of_its_own() -> None:
    assert len(_config_error_text("[server]\nprot = 7\nport = -1\n").splitlines()) == 2


def test_a_mistake_in_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPUTIZE_SERVER__PORT", "abc")

    assert _config_error_text("").startswith("DEPUTIZE_SERVER__PORT: server.port is invalid")


def test_a_mistake_in_a_variable_is_not_looked_for_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPUTIZE_SERVERS", '[{"name": "b", "command": ["b"], "uid": 0}]')

    text = _config_error_text('[[servers]]\nname = "a"\nurl = "https://a.example/"\n')

    assert text.startswith("DEPUTIZE_SERVERS: servers.0.uid is invalid: ")


def test_a_variable_that_should_be_json_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPUTIZE_SERVER", "7070")

    assert "DEPUTIZE_SERVER" in _config_error_text("")


def test_a_wrong_value_that_may_be_a_secret_is_not_repeated() -> None:
    assert "hunter2" not in _config_error_text("[database]\nurl = ['hunter2']\n")


def test_commands_work_below_the_folder_of_the_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "deputize.toml").touch()
    below = folder / "tools" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)

    assert enter_project()
    assert Path.cwd() == folder


def test_without_a_project_the_first_step_is_named() -> None:
    with pytest.raises(ConfigError, match="create a project with deputize init"):
        enter_project(is_required=True)


def test_the_state_folder_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_state_folder() == Path(".deputize")
    Path("deputize.toml").write_text('folder = "state"\n')
    assert find_state_folder() == Path("state")
    monkeypatch.setenv("DEPUTIZE_FOLDER", "elsewhere")
    assert find_state_folder() == Path("elsewhere")
