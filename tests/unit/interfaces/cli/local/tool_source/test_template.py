"""A new tool file can be checked and registered at once, and replaces nothing."""

from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.tool_loader import check_tool_file
from deputize.interfaces.cli.local.tool_source.template import write_tool_file


@pytest.mark.parametrize("effects", ["read", "write", "destructive"])
@pytest.mark.parametrize("description", ["Count the fruit", 'Say "hi" \\ {name} """ to all\nof us!'])
def test_a_new_tool_passes_its_check(tmp_path: Path, effects: str, description: str) -> None:
    file = write_tool_file(tmp_path, "stock.count", effects, description)
    file_check = check_tool_file(file)

    assert file == tmp_path / "tools" / "stock.py"
    assert file_check.refusals == ()
    assert (file_check.contracts[0].full_name, file_check.contracts[0].effects) == ("stock.count", effects)
    assert file_check.contracts[0].description.startswith(description[:6])


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    file = write_tool_file(tmp_path, "stock.count", "read", "Count the fruit.")
    file.write_text("mine\n")

    with pytest.raises(ConfigError, match=r"tools/stock\.py exists"):
        write_tool_file(tmp_path, "stock.weigh", "read", "Weigh the fruit.")
    assert file.read_text() == "mine\n"


@pytest.mark.parametrize("name", ["count", "Stock.count", "stock.class", "a.b.c", "../x.y", "stock." + "x" * 60])
def test_a_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a tool"):
        write_tool_file(tmp_path, name, "read", "Count the fruit.")
    assert list(tmp_path.iterdir()) == []
