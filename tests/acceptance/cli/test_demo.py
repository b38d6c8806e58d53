"""The demo goes as its tour tells, and leaves nothing behind; its tools can be registered."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

import deputize
from tests.acceptance.cli.cli_process import run_deputize

SHOP = Path(deputize.__file__).parent / "interfaces" / "cli" / "local" / "demo_shop"


@pytest.mark.parametrize("file", sorted(each.name for each in (SHOP / "tools").glob("*.*")))
def test_the_tools_of_the_demos_shop_can_be_registered(tmp_path: Path, file: str) -> None:
    shop = Path(shutil.copytree(SHOP, tmp_path / "shop"))
    checked = run_deputize("tool", "check", f"tools/{file}", folder=shop)
    assert checked.code == 0, checked.output


@pytest.mark.nightly
def test_every_station_of_the_demo_is_as_told(tmp_path: Path) -> None:
    done = run_deputize("demo", "--headless", "--json", folder=tmp_path)

    assert done.code == 0, done.output
    events = [json.loads(line) for line in done.out.splitlines()]
    stations = {each["name"]: each["as_told"] for each in events if each["event"] == "station"}
    assert stations == dict.fromkeys(("refusal", "approval", "retry", "undo", "switch", "backtest"), True)
    assert events[-1] == {"event": "stopped", "surprises": []}
    assert not os.listdir(tmp_path)
    assert not list(Path(tempfile.gettempdir()).glob("deputize-demo-*"))
