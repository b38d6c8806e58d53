"""The judge of the sandbox_escape proof finds each planted fault, and its host sees what was done to it."""

import os
import socket
from dataclasses import replace

import pytest

from deputize.sandboxes.port import Backend
from proofs.sandbox_escape.attempts import ATTEMPTS
from proofs.sandbox_escape.experiment import Host, Trial, judge
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

GOOD = [Trial(name=name, control=("word",), sandboxed=()) for name in ATTEMPTS]


def test_a_good_run_misses_no_bar() -> None:
    verdict = judge(GOOD)
    assert list_missed_bars("sandbox_escape", verdict.figures) == set()
    assert list_exact_bars("sandbox_escape", among=verdict.figures.keys()) == {"got_through", "not_tried"}
    assert verdict.controls == {"without the sandbox": True}


@pytest.mark.parametrize(
    ("trials", "missed"),
    [
        ([*GOOD[1:], replace(GOOD[0], sandboxed=("files",))], {"got_through"}),
        ([*GOOD, replace(GOOD[0], sandboxed=("secret",), backend=Backend.GVISOR)], {"got_through"}),
        ([*GOOD[1:], replace(GOOD[0], was_tried=False)], {"not_tried"}),
        ([*GOOD[:50], *(replace(each, control=()) for each in GOOD[50:])], {"attempts_with_control", "kinds"}),
    ],
)
def test_each_planted_fault_misses_its_bar(trials: list[Trial], missed: set[str]) -> None:
    assert list_missed_bars("sandbox_escape", judge(trials).figures) == missed


def test_the_host_sees_what_was_done_to_it() -> None:
    with Host.open() as host:
        facts = host.describe()
        assert host.observe(b"begun") == ()
        assert host.secret not in str(facts)
        assert host.observe(host.secret.encode()) == ("secret",)
        (host.folder / "escaped").touch()
        with socket.create_connection(("127.0.0.1", facts["port"])):
            pass
        os.kill(facts["victim"], 9)
        host.victim.wait()
        assert host.observe(b"") == ("files", "killed", "connected to port")
