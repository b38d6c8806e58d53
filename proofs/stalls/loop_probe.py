"""Measure a gateway's event loop from inside: the longest stretch of processor time, and the longest wait for others.

A timer ticks every millisecond. What the loop's thread computed between two ticks is one stretch, and what other
threads of the process computed meanwhile, while the loop could not tick, is a wait for the interpreter's lock. Both are
processor time, so that a busy machine does not count.
"""

import asyncio
import gc
import mmap
import os
import struct
import sys
import threading
import time
import traceback
from pathlib import Path

PROBE_FILE = "PROOF_LOOP_PROBE"
_FIELDS = struct.Struct("=dd")
_TICK_SECONDS = 0.001
_REPORT_SECONDS = 0.03
_STACK_FRAMES = 8


class ProbeReader:
    """The figures of a gateway's probe, read and reset by the proof."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(_FIELDS.size))
        self._memory = _map_file(file)

    def reset(self) -> None:
        """Forget what was measured."""
        self._memory[:] = bytes(_FIELDS.size)

    def read(self) -> tuple[float, float]:
        """Read the longest stretch and the longest wait since the last reset, in seconds."""
        stretch, wait = _FIELDS.unpack(self._memory[:])
        return stretch, wait


def start_probe() -> None:
    """Start to measure the running loop, into the file that the environment names."""
    probe = _LoopProbe(_map_file(Path(os.environ[PROBE_FILE])), asyncio.get_running_loop())
    probe.tick()
    gc.callbacks.append(probe.time_collection)
    threading.Thread(target=probe.watch, daemon=True, name="loop probe").start()


class _LoopProbe:
    def __init__(self, memory: mmap.mmap, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = memory
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._clock_id = time.pthread_getcpuclockid(self._thread_id)
        self._ticked_at = time.monotonic()
        self._own = time.thread_time()
        self._all = time.process_time()
        self._collection_began_at = 0.0

    def tick(self) -> None:
        now, own, every = time.monotonic(), time.thread_time(), time.process_time()
        stretch = own - self._own
        others = every - self._all - stretch
        wait = min(now - self._ticked_at - _TICK_SECONDS - stretch, others)
        self._ticked_at, self._own, self._all = now, own, every
        longest_stretch, longest_wait = _FIELDS.unpack(self._memory[:])
        if stretch > longest_stretch or wait > longest_wait:
            self._memory[:] = _FIELDS.pack(max(stretch, longest_stretch), max(wait, longest_wait))
        self._loop.call_later(_TICK_SECONDS, self.tick)

    def time_collection(self, phase: str, info: dict[str, int]) -> None:
        """Print garbage collections that take long: a stretch without a place in the code may be one."""
        if phase == "start":
            self._collection_began_at = time.thread_time()
        elif (seconds := time.thread_time() - self._collection_began_at) > _REPORT_SECONDS:
            text = f"long collection of generation {info['generation']}: {seconds * 1000:.0f} ms"
            print(text, file=sys.stderr, flush=True)

    def watch(self) -> None:
        """Print where the loop's thread is if a stretch grows long; the proof's log shows it."""
        reported = 0.0
        while True:
            time.sleep(_TICK_SECONDS * 5)
            began = self._own
            if time.clock_gettime(self._clock_id) - began > _REPORT_SECONDS and reported != began:
                reported = began
                frame = sys._current_frames().get(self._thread_id)
                frames = traceback.extract_stack(frame)[-_STACK_FRAMES:]
                places = " > ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in frames)
                print(f"long stretch: {places}", file=sys.stderr, flush=True)


def _map_file(file: Path) -> mmap.mmap:
    with file.open("r+b") as stream:
        return mmap.mmap(stream.fileno(), _FIELDS.size)
