"""Notice when the event loop stands still, measure for how long, and name the task that held it.

A thread looks at a tick that the loop keeps renewing. If the tick is late, the thread records the running task and the
stack of the loop's thread at that moment; when the loop ticks again, the stall is counted and logged.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)
# The longest that the event loop should be busy with one thing.
STALL_SECONDS: Final = 0.05
_TICK_SECONDS: Final = 0.02
_LOG_SECONDS: Final = 10.0
_STACK_FRAMES: Final = 12
_MAX_NAME_LENGTH: Final = 120


class LoopWatchdog:
    """Measures the stalls of one event loop; `record_stall` is called on the loop with the seconds of each.

    Startup may stall the loop: nothing is logged in the first `quiet_seconds`.
    """

    def __init__(self, record_stall: Callable[[float], None], *, quiet_seconds: float = _LOG_SECONDS) -> None:
        self._record_stall = record_stall
        self._ticked_at = 0.0
        self._culprit: tuple[str, str] | None = None
        self._quiet_seconds = quiet_seconds
        self._logged_at = float("-inf")
        self._thread_id = 0
        self._stop_event = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to tick, and a thread that looks whether it does."""
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._ticked_at = time.monotonic()
        self._logged_at = self._ticked_at + self._quiet_seconds - _LOG_SECONDS
        self._task = asyncio.create_task(self._tick(), name="event loop watchdog")
        threading.Thread(target=self._watch, name="event loop watchdog", daemon=True).start()

    async def stop(self) -> None:
        """Stop the thread and the ticking."""
        self._stop_event.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            seconds = now - self._ticked_at - _TICK_SECONDS
            culprit, self._culprit = self._culprit, None
            self._ticked_at = now
            if seconds > STALL_SECONDS:
                self._record_stall(seconds)
                if now - self._logged_at >= _LOG_SECONDS:
                    self._logged_at = now
                    task, stack = culprit or ("unknown", "")
                    log.debug("event_loop_stalled", seconds=round(seconds, 3), task=task, stack=stack)

    def _watch(self) -> None:
        while not self._stop_event.wait(_TICK_SECONDS):
            is_late = time.monotonic() - self._ticked_at > _TICK_SECONDS + STALL_SECONDS
            if is_late and self._culprit is None and self._loop is not None:
                self._culprit = (_name_task(self._loop), self._format_stack())

    def _format_stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        if frame is None:
            return ""
        frames = traceback.extract_stack(frame)[-_STACK_FRAMES:]
        return " > ".join(f"{each.filename.rpartition('deputize/')[2]}:{each.lineno} {each.name}" for each in frames)


def _name_task(loop: asyncio.AbstractEventLoop) -> str:
    task = asyncio.current_task(loop)
    if task is None:
        return "a callback of the event loop"
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", "")
    return f"{task.get_name()} ({name})"[:_MAX_NAME_LENGTH]
