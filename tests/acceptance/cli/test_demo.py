"""The demo goes as its tour tells, and leaves nothing behind."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import run_deputize

pytestmark = pytest.mark.nightly


def test_every_station_of_the_demo_is_as_told(tmp_path: Path) -> None:
    done = run_deputize("demo", "--headless", "--json", folder=tmp_path)

    assert done.code == 0, done.output
    events = [json.loads(line) for line in done.out.splitlines()]
    stations = {each["name"]: each["as_told"] for each in events if each["event"] == "station"}
    assert stations == dict.fromkeys(("refusal", "approval", "retry", "undo", "switch", "backtest"), True)
    assert events[-1] == {"event": "stopped", "surprises": []}
    assert not os.listdir(tmp_path)
    assert not list(Path(tempfile.gettempdir()).glob("deputize-demo-*"))
