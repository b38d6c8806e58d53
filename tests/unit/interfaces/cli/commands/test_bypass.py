"""Test that `deputize connect` names the client's servers that the gateway serves, too."""

import json
from pathlib import Path

import pytest

from deputize.interfaces.cli.commands.connect import _warn_of_bypass
from deputize.interfaces.cli.local.client_setup.client_file import ClientFile
from deputize.interfaces.cli.local.client_setup.clients import CLIENTS, ClientName

pytestmark = pytest.mark.requirement("NEW-8")
SETTINGS = '[[servers]]\nname = "orders"\n[[servers]]\nname = "gate"\n'


@pytest.mark.parametrize(
    ("settings", "names"), [(SETTINGS, ["orders"]), ("", []), ("not TOML", []), ("servers = 'orders'", [])]
)
def test_only_servers_that_both_have_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: str,
    names: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deputize.toml").write_text(settings)
    client = CLIENTS[ClientName.CLAUDE_CODE]
    Path(".mcp.json").write_text(json.dumps({client.section: {"orders": {}, "notes": {}, "gate": {}}}))
    _warn_of_bypass(ClientFile(client, Path(".mcp.json"), "gate"))
    lines = capsys.readouterr().err.splitlines()
    assert [line for name in names for line in lines if f"still has {name}, whose calls bypass" in line] == lines
    assert len(lines) == len(names)
