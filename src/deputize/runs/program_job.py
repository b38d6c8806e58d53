"""Run a program on the interpreter until it calls a tool whose result is not recorded yet, or ends.

A job of `execute/job_processes.py`, and the only place that knows the interpreter. Its program has no files, network or
environment; the clock stands still and randomness has a seed, both from the id of its call. So it does the same each
time: it is run from its beginning, gets the recorded results of the calls that it made before, and stops at the next
one. A call that differs from the one that is recorded in its place is refused.

The interpreter is a process of its own for each job, in a sandbox (`interpreter.py`). Nothing of it is used again. The
one for the next job is started when the reply to this one is on its way.
"""

import base64
import contextlib
import datetime
import hashlib
import json
import math
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from deputize.runs.interpreter import find_interpreter, open_interpreter
from deputize.sandboxes.client import SandboxUnavailable
from deputize.sandboxes.port import Ending

if TYPE_CHECKING:
    import pydantic_monty

MAX_PRINTED: Final = 65_536
MAX_RESULT: Final = 65_536
MAX_ARGUMENTS: Final = 262_144
MAX_STATE: Final = 4_194_304
_MAX_MESSAGE: Final = 1_000
_MAX_FRAMES: Final = 10
_MAX_DEPTH: Final = 200
# Reading names suspends a program, too.
_SUSPENSIONS_PER_CALL: Final = 20
_KILL_SECONDS: Final = 1.0
# How long the interpreter may take to start on a busy machine.
_START_SECONDS: Final = 10.0
_TIME_MESSAGE: Final = "feed time limit exceeded"
_MEMORY_MESSAGES: Final = ("memory limit exceeded", "the worker exceeded its memory limit")
# With which the interpreter ends itself if a value finds no memory. Its library sees how what starts it ended.
_MEMORY_EXIT_CODE: Final = 65


def replay_job(payload: bytes) -> bytes:
    """Run a program with what is recorded of its calls; reply with its next call or its end, and the seconds taken."""
    request = orjson.loads(payload)
    replay = _Replay(request)
    try:
        reply = _run_interpreter(request, replay)
    except SandboxUnavailable as error:
        reply = replay.end("sandbox", f"the sandbox of the interpreter was not started: {error}")
    return orjson.dumps({**reply, "seconds": replay.seconds})


def try_interpreter(sandbox: dict[str, str] | None) -> str | None:
    """Run the smallest program; return why that failed."""
    request = {
        "code": "1", "functions": [], "calls": [], "seconds": _START_SECONDS, "memory_bytes": 1_048_576, "clock_ms": 0,
        "seed": "", "sandbox": sandbox,
    }  # fmt: skip
    reply: dict[str, Any] = orjson.loads(replay_job(orjson.dumps(request)))
    failure = reply["end"].get("failure")
    return None if failure is None else str(failure["message"])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Needs:
    """What an interpreter is started with; `seconds` is the longest that its program may compute."""

    sandbox: dict[str, str] | None
    memory_bytes: int
    seconds: float


class _Worker:
    """An interpreter for one program, from its start to its end."""

    def __init__(self, needs: _Needs) -> None:
        self.needs = needs
        self.session: pydantic_monty.MontySession | None = None
        self._pool: pydantic_monty.Monty | None = None
        self.stack = contextlib.ExitStack()
        self.interpreter = self.stack.enter_context(
            open_interpreter(find_interpreter(), needs.sandbox, memory_bytes=needs.memory_bytes)
        )

    def start(self) -> "pydantic_monty.Monty":
        """Start its process."""
        import pydantic_monty  # noqa: PLC0415 -- an extra, and only this process needs it

        with self.interpreter.limit_time(_START_SECONDS):
            self._pool = self.stack.enter_context(
                pydantic_monty.Monty(
                    binary_path=self.interpreter.path,
                    max_processes=1,
                    request_timeout=self.needs.seconds + 2 * _KILL_SECONDS + _START_SECONDS,
                    feed_duration_limit_grace=_KILL_SECONDS,
                )
            )
        return self._pool

    def begin(self, request: dict[str, Any]) -> "pydantic_monty.MontySession":
        """Begin the session of its program, whose time begins, too."""
        pool = self._pool or self.start()
        self.stack.enter_context(self.interpreter.limit_time(request["seconds"] + 2 * _KILL_SECONDS + _START_SECONDS))
        self.session = self.stack.enter_context(
            pool.checkout(limits=_build_limits(request), os_policy=_build_policy(request))
        )
        return self.session


class _Spare:
    """The interpreter that has started for the next program, if there is one. No program has used it."""

    def __init__(self) -> None:
        self._needs: _Needs | None = None
        self._worker: _Worker | None = None

    def take(self, request: dict[str, Any], needs: _Needs) -> _Worker | None:
        """Begin the session of a program on it, if it is what the program needs, and alive."""
        import pydantic_monty  # noqa: PLC0415 -- see above

        worker, self._worker = self._worker, None
        is_same = self._needs is not None and replace(self._needs, seconds=needs.seconds) == needs
        # A program that has computed already has less time left than the next one.
        self._needs = max(needs, self._needs, key=lambda each: each.seconds) if self._needs and is_same else needs
        if worker is None:
            return None
        if is_same and worker.needs.seconds >= needs.seconds and not worker.interpreter.has_ended:
            with contextlib.suppress(pydantic_monty.MontyError, RuntimeError):
                worker.begin(request)
                return worker
        worker.stack.close()
        return None

    def prepare(self) -> None:
        """Start it with what the last program needed."""
        if self._needs is None or self._worker is not None:
            return
        worker = _Worker(self._needs)
        try:
            worker.start()
        except BaseException:
            worker.stack.close()
            raise
        self._worker = worker


_spare: Final = _Spare()


def prepare_next() -> None:
    """Start the interpreter of the next program, while nobody waits for it."""
    _spare.prepare()


def _run_interpreter(request: dict[str, Any], replay: "_Replay") -> dict[str, Any]:
    import pydantic_monty  # noqa: PLC0415 -- see above

    needs = _Needs(sandbox=request["sandbox"], memory_bytes=request["memory_bytes"], seconds=request["seconds"])
    worker = _spare.take(request, needs) or _Worker(needs)
    with worker.stack:
        try:
            return replay.run(worker.session or worker.begin(request), request.get("session"))
        except pydantic_monty.MontyCrashedError as crash:
            return replay.end("timed_out", str(crash)) if crash.timed_out else _judge_crash(worker, replay, crash)
        except pydantic_monty.MontyError as error:
            return replay.explain(error)
        except (MemoryError, RecursionError):
            return replay.end("memory", "its values are too large or too deeply nested to be taken out of it")
        except _Stopped as stopped:
            return stopped.reply
        except RuntimeError as error:
            # What stands for the interpreter cannot be executed here.
            raise SandboxUnavailable(str(error)) from error


def _judge_crash(worker: _Worker, replay: "_Replay", crash: Exception) -> dict[str, Any]:
    """Judge what ended the interpreter: only who ended its sandbox knows."""
    end = worker.interpreter.explain_end()
    if end.ending is Ending.FAILURE:
        return replay.end("sandbox", f"the sandbox of the interpreter ended: {end.note}")
    if end.ending is Ending.EXIT and end.exit_code == _MEMORY_EXIT_CODE:
        return replay.end("memory", "MemoryError: the interpreter exceeded its memory limit and ended")
    # Only its time has its sandbox ended from here.
    return replay.end({Ending.MEMORY: "memory", Ending.CANCEL: "timed_out"}.get(end.ending, "crashed"), str(crash))


class _Stopped(Exception):
    """The program makes a call whose result is not recorded, or one that it may not make."""

    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__()
        self.reply = reply


def _build_limits(request: dict[str, Any]) -> "pydantic_monty.ResourceLimits":
    return {
        "max_feed_duration_secs": request["seconds"],
        "max_memory": request["memory_bytes"],
        "max_recursion_depth": _MAX_DEPTH,
        "max_suspensions": _SUSPENSIONS_PER_CALL * (len(request["calls"]) + 10),
    }


def _build_policy(request: dict[str, Any]) -> "pydantic_monty.OSPolicy":
    clock = datetime.datetime.fromtimestamp(request["clock_ms"] / 1000, tz=datetime.UTC)
    return {"datetime": clock, "sleep": "zero", "random_start": {"seed": request["seed"]}}


class _Replay:
    """One run of a program, with the recorded results of its calls."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._code: str = request["code"]
        self._source: bytes = self._code.encode()
        self._functions = frozenset(request["functions"])
        self._records: list[dict[str, Any]] = request["calls"]
        self._count = 0
        # What the program itself is called in positions; those inside of eval() have another name.
        self._file = f"<python-input-{(request.get('session') or {}).get('cells', 0)}>"
        self._printed: list[str] = []
        self._printed_length = 0
        # How long the program ran, without the start and the end of its interpreter.
        self.seconds = 0.0

    def run(self, session: "pydantic_monty.MontySession", kept: dict[str, Any] | None) -> dict[str, Any]:
        """Run the program to its next call or its end, from what earlier programs of its session left."""
        began_at = time.monotonic()
        try:
            if kept is not None and kept["state"]:
                session.load_session(base64.b64decode(kept["state"]))
            reply = self._advance(session)
            if kept is not None and "end" in reply and "failure" not in reply["end"]:
                reply = self._dump(session, reply)
            return reply
        finally:
            self.seconds = time.monotonic() - began_at

    def _dump(self, session: "pydantic_monty.MontySession", reply: dict[str, Any]) -> dict[str, Any]:
        """Add what the program leaves for the next one of its session."""
        state = session.dump()
        if len(state) > MAX_STATE:
            message = f"the variables of the session take {len(state):,} bytes, and may take {MAX_STATE:,}"
            return self.end("session_size", message)
        return {**reply, "state": base64.b64encode(state).decode()}

    def _advance(self, session: "pydantic_monty.MontySession") -> dict[str, Any]:
        import pydantic_monty  # noqa: PLC0415 -- see above

        snapshot = session.feed_start(self._code, print_callback=self._keep_printed)
        while True:
            if isinstance(snapshot, pydantic_monty.MontyComplete):
                return self._complete(snapshot.output)
            if isinstance(snapshot, pydantic_monty.NameLookupSnapshot):
                name = snapshot.variable_name
                snapshot = snapshot.resume(value=_make_stub(name)) if name in self._functions else snapshot.resume()
            elif isinstance(snapshot, pydantic_monty.FutureSnapshot):
                return self.end("raised", "a program cannot wait for calls beside each other", snapshot.position)
            elif snapshot.is_os_function:
                # Files, the environment, other modules and entropy: there are none.
                snapshot = snapshot.resume_not_handled()
            else:
                snapshot = snapshot.resume(self._answer(snapshot))

    def _answer(self, call: "pydantic_monty.FunctionSnapshot") -> "pydantic_monty.ExternalResult":
        """Answer a call of a tool with what is recorded, or with what is wrong with it; otherwise stop there."""
        name, line = str(call.function_name), self._find_line(call.position)
        if call.args:
            return _raise("TypeError", f"{name}() takes its arguments by name, as in {name}(x=1)")
        try:
            arguments = json.dumps(call.kwargs, allow_nan=False, sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            return _raise("TypeError", f"an argument of {name}() is not JSON: {error}")
        if len(arguments) > MAX_ARGUMENTS:
            return _raise("ValueError", f"the arguments of {name}() have more than {MAX_ARGUMENTS:,} characters")
        digest = hashlib.sha256(f"{name}\n{arguments}".encode()).hexdigest()
        if self._count < len(self._records):
            record = self._records[self._count]
            self._count += 1
            if record["digest"] != digest:
                raise _Stopped(self.end("differs", f"call {self._count} is not the one that was made", call.position))
            if "answer" in record:
                answer: pydantic_monty.ExternalResult = record["answer"]
                return answer
        elif name not in self._functions:
            raise _Stopped(self.end("not_allowed", f"{name} is no tool that programs may call here", call.position))
        else:
            self._count += 1
        fields = {"function": name, "arguments": json.loads(arguments), "digest": digest, "line": line}
        raise _Stopped({"call": {"number": self._count, **fields}})

    def _complete(self, value: Any) -> dict[str, Any]:
        if self._count < len(self._records):
            return self.end("differs", f"it ended before call {self._count + 1}, which was made")
        try:
            result, is_cut = _describe_value(value)
        except ValueError:
            message = f"ValueError: the result has a whole number of more than {sys.get_int_max_str_digits():,} digits"
            return self.end("raised", f"{message}: return hex() of it, or a part")
        end = {"result": result, "is_result_cut": is_cut, **self._describe_printed(), "calls": self._count}
        return {"end": end}

    def explain(self, error: "pydantic_monty.MontyError") -> dict[str, Any]:
        """Explain how a program failed."""
        frames = [each for each in getattr(error, "traceback", list)() if each.filename == self._file]
        message, cause = str(error), error.exception()
        kind = "raised"
        if isinstance(cause, TimeoutError) and _TIME_MESSAGE in message:
            kind = "time"
        elif isinstance(cause, MemoryError) and any(each in message for each in _MEMORY_MESSAGES):
            kind = "memory"
        elif isinstance(cause, RecursionError):
            kind = "recursion"
        reply = self.end(kind, message)
        if frames:
            reply["end"]["failure"]["line"] = frames[-1].line
            reply["end"]["failure"]["traceback"] = [
                {"line": each.line, "function": each.function_name or "<module>"} for each in frames[-_MAX_FRAMES:]
            ]
        return reply

    def end(self, kind: str, message: str, position: "pydantic_monty.SourceRange | None" = None) -> dict[str, Any]:
        failure = {"kind": kind, "message": message[:_MAX_MESSAGE], "line": self._find_line(position)}
        return {"end": {"failure": failure, **self._describe_printed(), "calls": self._count}}

    def _find_line(self, position: "pydantic_monty.SourceRange | None") -> int | None:
        if position is None or position.filename != self._file:
            return None
        start: int = position.start
        return self._source[:start].count(b"\n") + 1

    def _keep_printed(self, _: str, text: str) -> None:
        space = MAX_PRINTED - self._printed_length
        self._printed_length += len(text)
        if space > 0:
            self._printed.append(text[:space])

    def _describe_printed(self) -> dict[str, Any]:
        return {"printed": "".join(self._printed), "is_printed_cut": self._printed_length > MAX_PRINTED}


def _raise(kind: "pydantic_monty.ExcType", message: str) -> "pydantic_monty.ExternalExceptionData":
    return {"exc_type": kind, "message": message}


def _make_stub(name: str) -> Any:
    def stub() -> None:
        """Stand for a tool: the interpreter takes its name."""

    stub.__name__ = name
    return stub


def _describe_value(value: Any) -> tuple[Any, bool]:
    """Return a value as JSON, or as text if it is none or too long; and whether it was cut."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
        return text[:MAX_RESULT], len(text) > MAX_RESULT
    if len(text) > MAX_RESULT:
        return text[:MAX_RESULT], True
    return _limit_numbers(json.loads(text)), False


def _limit_numbers(value: Any) -> Any:
    """Write integers as text that JSON readers would round."""
    if isinstance(value, dict):
        return {name: _limit_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_limit_numbers(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= math.ldexp(1, 53):
        return str(value)
    return value
