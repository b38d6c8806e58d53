"""The wheel works where nothing else is: in a new environment it serves a first call, and shows the demo."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checks.wheel import ROOT, build_wheel
from tests.acceptance.cli.cli_process import BackgroundCommand, run_deputize

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the wheel with what development needs, as a user of a package index does."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(ROOT, folder)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [str(folder / "venv/bin/pip"), "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    # Where packages come from is in the environment of this machine.
    subprocess.run([*pip, f"{wheel}[local]"], cwd=folder, env=os.environ, check=True)
    return str(folder / "venv/bin/deputize")


def test_from_the_wheel_to_a_governed_call(program: str, tmp_path: Path) -> None:
    assert run_deputize("init", "shop", folder=tmp_path, program=program).code == 0
    with BackgroundCommand("dev", folder=tmp_path / "shop", program=program) as dev:
        dev.wait_for_line("▶")
        called = run_deputize("call", "hello.greet", "name=Ana", folder=tmp_path / "shop", program=program)
        assert (called.code, "Hello, Ana!" in called.out) == (0, True), called.output


def test_the_demo_is_up_within_half_a_minute_and_leaves_nothing_behind(program: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with subprocess.Popen(
        [program, "demo", "--headless", "--json"], cwd=tmp_path, env={}, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        events = [(time.monotonic() - began, json.loads(line)) for line in demo.stdout]
    ready = next(seconds for seconds, event in events if event["event"] == "demo")
    print(f"console up after {ready:.1f} s")
    assert ready <= 30
    assert (demo.returncode, events[-1][1]) == (0, {"event": "stopped", "surprises": []})
    assert not os.listdir(tmp_path)
