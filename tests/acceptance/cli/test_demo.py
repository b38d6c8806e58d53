"""The demo goes as its tour tells, and leaves nothing behind; its tools can be registered."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import deputize
from deputize.interfaces.cli.commands.service import demo
from tests.acceptance.cli.cli_process import run_deputize

SHOP = Path(deputize.__file__).parent / "interfaces" / "cli" / "local" / "demo_shop"


@pytest.mark.parametrize("file", sorted(each.name for each in (SHOP / "tools").glob("*.*")))
def test_the_tools_of_the_demos_shop_can_be_registered(tmp_path: Path, file: str) -> None:
    shop = Path(shutil.copytree(SHOP, tmp_path / "shop"))
    checked = run_deputize("tool", "check", f"tools/{file}", folder=shop)
    assert checked.code == 0, checked.output


@pytest.mark.parametrize(("approves", "typed"), [(True, "approvals approve"), (False, "approvals deny")])
def test_the_reader_decides_at_the_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approves: bool, typed: str
) -> None:
    shutil.copytree(SHOP / "drafts", tmp_path / "drafts")
    lines: list[str] = []
    pages: list[str] = []

    def run_typed(_: Any, line: str) -> "subprocess.CompletedProcess[str]":
        lines.append(line)
        return subprocess.CompletedProcess(line, 0, "call 01930000-0000-7000-8000-000000000000", "")

    def show_station(station: dict[str, str] | None) -> None:
        if station is not None:
            pages.append(station["page"])

    monkeypatch.setattr(demo, "_run_typed", run_typed)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: approves)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "")
    gateway = SimpleNamespace(folder=tmp_path, wait_for=lambda _: {"code": "4F7K"}, show_station=show_station)

    demo.take_tour(cast("Any", gateway), has_person=True)

    (decided,) = [each for each in lines if "--code" in each]
    assert decided.startswith(f"deputize {typed} last --code 4F7K")
    # The page of the last station has the draft that the station talks about.
    assert "file=drafts/orders-ask.cedar&text=" in pages[-1]
    assert "orders-by-agents-ask" in pages[-1]


def test_tokens_of_the_demo_are_for_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess("", 0, "token\n", "")
    monkeypatch.setattr(demo, "_run_typed", lambda *_: done)
    demo.create_tokens(cast("Any", SimpleNamespace(folder=tmp_path)))
    assert {each.stat().st_mode & 0o777 for each in tmp_path.glob("*.token")} == {0o600}


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
