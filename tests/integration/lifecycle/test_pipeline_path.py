"""A governed write passes few modules of the lifecycle, each of them entered from one place in `run.py`."""

import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import deputize.lifecycle
from tests.integration.conftest import HttpGateway

LIFECYCLE = Path(deputize.lifecycle.__file__).parent
PHASES = ["validate", "authorize", "execute", "verify", "reply"]


class ModuleTrace:
    """Records which modules of the lifecycle calls pass, and from which lines of `run.py` each is entered.

    Only frames below `run.py` count: background tasks share the event loop.
    """

    def __init__(self) -> None:
        self.modules: list[str] = []
        self.entry_lines: defaultdict[str, set[int]] = defaultdict(set)
        self._frames: list[FrameType] = []

    def __enter__(self) -> "ModuleTrace":
        sys.setprofile(self._record_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _record_call(self, frame: FrameType, event: str, _: Any) -> None:
        module = _get_module(frame)
        # A coroutine is entered again whenever it is resumed; only its first entry is a call.
        if event != "call" or module is None or frame in self._frames:
            return
        caller = _find_lifecycle_frame(frame.f_back)
        if module != "run" and caller is None:
            return
        self._frames.append(frame)
        self.modules.append(module)
        if module != "run" and caller is not None and _get_module(caller) == "run":
            self.entry_lines[module].add(caller.f_lineno)


def _get_module(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return path.relative_to(LIFECYCLE).with_suffix("").as_posix() if LIFECYCLE in path.parents else None


def _find_lifecycle_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _get_module(frame) is None:
        frame = frame.f_back
    return frame


async def test_a_rest_write_passes_few_modules_and_enters_each_from_one_place(gateway: HttpGateway) -> None:
    arguments = {"id": 7, "name": "Ana"}
    assert (await gateway.call("shop.rename_user", arguments, key="path-1")).status_code == 200
    with ModuleTrace() as trace:
        reply = await gateway.call("shop.rename_user", arguments, key="path-2")
    assert reply.status_code == 200
    # Three of them record: the entry, what it commits to, and the states that were passed.
    assert len(set(trace.modules)) <= 14, sorted(set(trace.modules))
    assert {module: lines for module, lines in trace.entry_lines.items() if len(lines) > 1} == {}
    assert [module for module in dict.fromkeys(trace.modules) if module in PHASES] == PHASES
