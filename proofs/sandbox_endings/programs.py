"""Programs that end in every way there is, and what their calls must say: commands, and interpreted ones."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

Strike = Literal["cancel", "kill supervisor", "kill sandbox", "kill interpreter", "kill worker"]
SUCCEEDED: Final = "succeeded"
MARK: Final = "DEPUTIZE_PROOF_MARK"
"""The variable by which the processes of the proof are found, whatever they call themselves."""
PYTHON: Final = "/usr/bin/python3"


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to end: a program, what happens to it from outside, and how its call must end.

    `number` is the call's error, and `detail` what its details must have; without a number, it must succeed.
    """

    name: str
    code: str
    number: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    strike: Strike | None = None
    fields: dict[str, Any] = field(default_factory=dict)


_FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        os._exit(1)
"""
_REFUSED_FORKS = """
import os, time
pids = []
try:
    while True:
        pids.append(os.fork())
        if pids[-1] == 0:
            time.sleep(600)
except OSError:
    for each in pids:
        os.kill(each, 9)
"""
_THREADS = """
import threading, time
for _ in range(500):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
_MEMORY_IN_A_CHILD = """
import os
if os.fork() == 0:
    b"x" * 500_000_000
status = os.wait()[1]
raise SystemExit({code})
"""
_STUBBORN = """
import os, signal, time
for each in range(1, 65):
    try:
        signal.signal(each, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        break
time.sleep(600)
"""
_KILL_EVERYTHING = """
import os
for each in (-1, 1, os.getpid()):
    try:
        os.kill(each, 9)
    except OSError:
        pass
"""
_FILES = """
for each in range(1_000):
    open("/out/%d" % each, "w").close()
"""
_FLOOD = """
import errno, os
file = os.open("/out/flood", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(file, bytes(65_536))
except OSError as error:
    {then}
"""
_SLEEP = "import time; print('begun', flush=True); time.sleep(600)"
_SPIN = "while True: pass"

COMMANDS: Final = (
    Way(name="exit_zero", code="print('done')"),
    Way(name="exit_three", code="raise SystemExit(3)", number="E3401", detail={"ended_by": "exit", "exit_code": 3}),
    # Its own doing, whatever the number looks like: nobody else ended it.
    Way(name="exit_like_a_kill", code="import os; os._exit(137)", number="E3404", detail={"ended_by": "crash"}),
    Way(name="exit_like_a_timeout", code="raise SystemExit(124)", number="E3401", detail={"exit_code": 124}),
    Way(name="says_it_was_killed", code="import sys; sys.exit('Killed: out of memory')", number="E3401",
        detail={"ended_by": "exit", "exit_code": 1}),
    Way(name="kill_itself", code="import os; os.kill(os.getpid(), 9)", number="E3404",
        detail={"ended_by": "crash", "signal": 9}),
    Way(name="kill_everything", code=_KILL_EVERYTHING,
        number="E3404", detail={"ended_by": "crash", "signal": 9}),
    Way(name="segfault", code="import ctypes; ctypes.string_at(0)", number="E3404", detail={"signal": 11}),
    Way(name="abort", code="import os; os.abort()", number="E3404", detail={"signal": 6}),
    Way(name="forbidden_call", code="import ctypes; raise SystemExit(ctypes.CDLL(None).syscall(165) != -1)"),
    Way(name="memory", code="b'x' * 500_000_000", number="E3403", detail={"ended_by": "memory"}),
    Way(name="memory_in_files", code="open('/tmp/x', 'wb').write(bytes(40_000_000)); b'x' * 40_000_000",
        number="E3403", detail={"ended_by": "memory"}),
    Way(name="memory_in_a_child", code=_MEMORY_IN_A_CHILD.format(code="status != 0"), number="E3403",
        detail={"ended_by": "memory"}),
    Way(name="memory_survived", code=_MEMORY_IN_A_CHILD.format(code="0")),
    Way(name="forks", code=_FORKS, number="E3407", detail={"ended_by": "processes"}),
    Way(name="refused_forks", code=_REFUSED_FORKS),
    Way(name="threads", code=_THREADS, number="E3407", detail={"ended_by": "processes"}),
    Way(name="output", code="while True: print('x' * 9_999)", number="E3407", detail={"ended_by": "output"}),
    Way(name="errors", code="import os\nwhile True: os.write(2, b'x' * 9_999)", number="E3407",
        detail={"ended_by": "output"}),
    Way(name="files", code=_FILES, number="E3407", fields={"files": {"count": 5, "bytes": 100_000}}),
    Way(name="flood_of_files", code=_FLOOD.format(then="raise"), number="E3407", detail={"ended_by": "output"},
        fields={"files": {}}),
    Way(name="flood_that_is_removed",
        code=_FLOOD.format(then="os.unlink('/out/flood'); os._exit(error.errno != errno.ENOSPC)"),
        fields={"files": {}}),
    Way(name="full_disk", code="open('/tmp/x', 'wb').write(bytes(20_000_000))", number="E3401",
        detail={"ended_by": "exit", "exit_code": 1}, fields={"limits": {"ephemeral_storage": "4Mi"}}),
    Way(name="deadline", code=_SLEEP, number="E3402", detail={"ended_by": "deadline"}, fields={"timeout": 2}),
    Way(name="deadline_of_a_loop", code=_SPIN, number="E3402", detail={"ended_by": "deadline"}, fields={"timeout": 2}),
    Way(name="deadline_ignored", code=_STUBBORN, number="E3402", detail={"ended_by": "deadline"},
        fields={"timeout": 2}),
    Way(name="no_program", code="", number="E3108", fields={"sha256": "0" * 64}),
    Way(name="canceled", code=_SLEEP, number="E3703", strike="cancel"),
    Way(name="supervisor_killed", code=_SLEEP, number="E3405", strike="kill supervisor"),
    Way(name="sandbox_killed", code=_SLEEP, number="E3405", strike="kill sandbox"),
)  # fmt: skip
"""What runs in sandboxes of the namespace backend."""

_CAUGHT_LOOP = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""
_CAUGHT_MEMORY = """
kept = []
while True:
    try:
        kept.append('x' * 1_000_000)
    except BaseException:
        pass
"""
_RECURSION = """
def again(number):
    return again(number + 1)
{call}
"""
INTERPRETED: Final = (
    Way(name="value", code="1 + 1"),
    Way(name="exception", code="1 / 0", number="E3423"),
    Way(name="no_syntax", code="def", number="E3423"),
    Way(name="exit_like_a_kill", code="raise SystemExit(137)", number="E3423"),
    Way(name="no_tool", code="lab__other()", number="E3423"),
    Way(name="deadline", code=_SPIN, number="E3402"),
    Way(name="deadline_caught", code=_CAUGHT_LOOP, number="E3402"),
    Way(name="deadline_of_output", code="while True: print('x' * 9_999)", number="E3402"),
    Way(name="much_output", code="for _ in range(100_000): print('x' * 9)"),
    Way(name="memory", code="kept = []\nwhile True: kept.append('x' * 1_000_000)", number="E3403"),
    Way(name="memory_caught", code=_CAUGHT_MEMORY, number="E3403"),
    Way(name="memory_of_a_number", code="2 ** 10_000_000_000", number="E3403"),
    Way(name="recursion", code=_RECURSION.format(call="again(0)"), number="E3407", detail={"limit": "recursion"}),
    Way(name="calls", code="for _ in range(9): lab__exit_zero()", number="E3407", detail={"limit": "calls"}),
    Way(name="a_tool_fails", code="lab__exit_three()", number="E3423"),
    Way(name="a_tool_crashes", code="lab__segfault()", number="E3423"),
    Way(name="a_failure_caught", code="try:\n    lab__segfault()\nexcept RuntimeError:\n    pass"),
    Way(name="canceled", code=_SPIN, number="E3703", strike="cancel"),
    Way(name="interpreter_killed", code=_SPIN, number="E3404", strike="kill interpreter"),
    Way(name="worker_killed", code="sum(each * each for each in range(10)) + lab__nap()['exit_code']",
        strike="kill worker"),
)  # fmt: skip
"""What runs on the interpreter, by `code.run`."""

_NAP = Way(name="nap", code="import time; time.sleep(3)")


def build_manifest(sha256: str, mark: str) -> dict[str, Any]:
    """Build the manifest of the commands, whose processes bear a mark."""
    return {"tools": [_build_tool(each, sha256, mark) for each in (*COMMANDS, _NAP)]}


def _build_tool(way: Way, sha256: str, mark: str) -> dict[str, Any]:
    limits = {"memory": "64Mi", "processes": 16, **way.fields.get("limits", {})}
    return {
        "name": f"lab.{way.name}", "description": "Run a program of the lab to its end.",
        "command": [PYTHON, "-S", "-c", way.code], "sha256": sha256, "output_bytes": 100_000, "timeout": 60,
        "input_schema": {}, "environment": {MARK: mark}, "retry": {"max_attempts": 1},
        "breaker": {"failure_threshold": 100}, **way.fields, "limits": limits,
    }  # fmt: skip
