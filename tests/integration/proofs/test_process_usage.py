"""What a process holds is seen from outside, and a number that another process has by now is not taken for it."""

import os
import subprocess
import sys

from proofs.sessions.process_usage import find_descendants, identify_process, is_running, read_usage

PARENT = "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"


def test_what_a_child_started_is_found_and_gone_when_it_is() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        names = {identify_process(parent.pid), identify_process(child)}
        assert {parent.pid, child} <= find_descendants(os.getpid())
        assert all(map(is_running, names))
        os.kill(child, 9)
        parent.wait(60)
    assert not any(map(is_running, names))
    assert child not in find_descendants(os.getpid())


def test_a_later_process_of_the_same_number_is_another() -> None:
    mine = identify_process(os.getpid())
    assert is_running(mine)
    assert not is_running((os.getpid(), "1"))


def test_open_files_and_memory_are_counted() -> None:
    before = read_usage(os.getpid())
    held = [os.dup(1) for _ in range(7)], bytearray(os.urandom(1 << 20) * 30)
    after = read_usage(os.getpid())
    for each in held[0]:
        os.close(each)
    assert after.open_files - before.open_files == 7
    assert after.rss_mib - before.rss_mib > 20
