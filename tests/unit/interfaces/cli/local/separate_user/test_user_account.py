"""The account of the gateway and that of agents: what one can change is nothing that the other trusts."""

import os
from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.separate_user.user_account import (
    UserAccount,
    find_changeable_part,
    find_gateway_account,
    require_protected_settings,
)

AGENT = UserAccount(name="agent", uid=54_321, gid=54_321, groups=(54_321, 54_322))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file, which only the account that runs the tests can change."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "file").write_text("")
    for path in (folder, folder / "file"):
        path.chmod(0o755)
    return folder


def test_a_place_of_another_account_cannot_be_changed(place: Path) -> None:
    assert find_changeable_part(place / "file", AGENT) is None
    assert find_changeable_part(place / "missing", AGENT) is None


@pytest.mark.parametrize(
    ("changed", "mode", "path", "part"),
    [
        (".", 0o777, "file", "."),
        ("file", 0o646, "file", "file"),
        # A sticky folder protects what is there from being replaced, but not a name that is still free.
        (".", 0o1777, "file", None),
        (".", 0o1777, "missing", "."),
        (".", 0o1777, ".", "."),
        # The group's right counts if the agent is in that group.
        (".", 0o775, "file", None),
    ],
)
def test_a_path_is_as_safe_as_its_weakest_part(
    place: Path, changed: str, mode: int, path: str, part: str | None
) -> None:
    (place / changed).chmod(mode)
    assert find_changeable_part(place / path, AGENT) == (None if part is None else place / part)


def test_a_link_is_as_safe_as_its_target(place: Path, tmp_path: Path) -> None:
    place.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(place / "file")
    assert find_changeable_part(link, AGENT) == place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_the_agent_owns_or_its_group_may_write_can_be_changed(place: Path) -> None:
    os.chown(place / "file", AGENT.uid, AGENT.gid)
    assert find_changeable_part(place / "file", AGENT) == place / "file"
    os.chown(place / "file", 0, AGENT.groups[1])
    assert find_changeable_part(place / "file", AGENT) is None
    (place / "file").chmod(0o664)
    assert find_changeable_part(place / "file", AGENT) == place / "file"


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"policy": {"files": ["/home/agent/policies/*.cedar"]}}, "policy.files"),
        ({"policy": {"files": ["../policies/*.cedar"]}}, "policy.files"),
        ({"keys": {"master_file": "../master.key"}}, "keys.master_file"),
        ({"keys": {"accepted_master_files": ["{open}/master.key"]}}, "keys.accepted_master_files"),
        ({"vault": {"token_file": "{open}/token"}}, "vault.token_file"),
        (
            {"identity": {"issuers": [{"issuer": "i", "audience": "a", "jwks_file": "{open}/keys.json"}]}},
            "identity.issuers.jwks_file",
        ),
        ({"servers": [{"name": "crm", "command": ["{open}/server"]}]}, "command of the server crm"),
        ({"servers": [{"name": "crm", "command": ["/bin/sh", "{open}/server"]}]}, "command of the server crm"),
        ({"servers": [{"name": "crm", "command": ["/bin/sh"], "folder": "{open}"}]}, "servers.folder"),
    ],
)
def test_settings_name_nothing_that_agents_can_change(place: Path, section: dict[str, object], name: str) -> None:
    place.chmod(0o777)
    with pytest.raises(ConfigError) as caught:
        require_protected_settings(Settings.model_validate(_fill(section, str(place))), AGENT)
    assert str(caught.value).startswith(name)


def test_settings_that_stay_inside_the_project_are_fine(place: Path) -> None:
    section = {"policy": {"files": ["policies/*.cedar"]}, "vault": {"token_file": str(place / "file")}}
    require_protected_settings(Settings.model_validate(section), AGENT)


def _fill(value: object, place: str) -> object:
    if isinstance(value, dict):
        return {key: _fill(each, place) for key, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, place) for each in value]
    return value.replace("{open}", place) if isinstance(value, str) else value


@pytest.mark.skipif(os.geteuid() == 0, reason="root may become any user")
def test_only_root_can_start_it() -> None:
    with pytest.raises(ConfigError, match="must be started by root"):
        find_gateway_account("daemon")


@pytest.mark.skipif(os.geteuid() != 0, reason="asked only of root")
@pytest.mark.parametrize(("name", "sentence"), [("no-such-user", "There is no user"), ("root", "fewer rights")])
def test_the_user_must_exist_and_have_fewer_rights(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        find_gateway_account(name)
