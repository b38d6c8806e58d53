"""What a contract leads to when it is called: functions in this process, or a tool of an MCP server.

The first are made by `catalog/importers/python.py` and run by `execute/drivers/python.py`, which never meet but here;
the second are found by `execute/drivers/mcp.py`.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NoReturn, Self

import orjson

from deputize.core.contract import Contract
from deputize.core.frozen import frozen
from deputize.core.questions import NONE, Ability, Round
from deputize.core.servers import CALL_TOOL

LONGEST_MESSAGE: Final = 500
LARGEST_PARTIAL: Final = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonTool:
    """`run` takes the arguments as keywords (and `context` if it asks for one); it may be async.

    `validate(**arguments)` raises `Refuse` before any effect; `verify(arguments, output)` raises after a bad one.
    `preview(**arguments)` returns a `Preview` of what `run` would do, and takes a context only if it says so.
    """

    contract: Contract
    run: Callable[..., Any]
    is_async: bool
    takes_context: bool = False
    validate: Callable[..., Any] | None = None
    verify: Callable[..., Any] | None = None
    preview: Callable[..., Any] | None = None
    previews_with_context: bool = False

    @property
    def target(self) -> str:
        return self.contract.handler.target


@dataclass(frozen=True, kw_only=True, slots=True)
class UpstreamTool:
    """A tool of a server elsewhere, under the name it has there, or another of its methods. It brings no check and no
    preview of its own: what it would do is told from its contract.
    """

    contract: Contract
    server: str
    name: str
    method: str = CALL_TOOL
    is_async: ClassVar[bool] = True
    takes_context: ClassVar[bool] = True
    validate: ClassVar[None] = None
    verify: ClassVar[None] = None
    preview: ClassVar[None] = None
    previews_with_context: ClassVar[bool] = False


AnyTool = PythonTool | UpstreamTool


class SecretClosed(RuntimeError):
    """A credential was asked for after the attempt it was lent to had ended."""


class Secret:
    """A credential lent to one attempt of one call. It shows itself only to `reveal()`, and only until it is closed.

    Whoever keeps what `reveal()` returned keeps it: Python cannot take a string back.
    """

    __slots__ = ("_value", "name")

    def __init__(self, value: str, *, name: str = "") -> None:
        self.name = name
        self._value: str | None = value

    def reveal(self) -> str:
        if self._value is None:
            raise SecretClosed("this credential was lent to one attempt of a call, which is over")
        return self._value

    def close(self) -> None:
        self._value = None

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"

    def __copy__(self) -> Self:
        """A copy is the same handle, and is closed with it."""
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential is not written down")


@frozen
class Told:
    """What a running tool says of itself: how far it is, or, as JSON, a part of its result."""

    done: float | None = None
    total: float | None = None
    message: str = ""
    partial: bytes | None = None


# A state, the name it is saved under, and whether it is a milestone.
Save = Callable[[Any, str | None, bool], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a running tool may know about its call. `key` is what to hand to an upstream that deduplicates;
    `credential` is what the contract's `auth` asks for, and open only while the tool runs. `restored` is the state that
    was saved last, where another worker carried this call before or this is not its first attempt. `guards` is what the
    tool's preview handed over, where somebody decided on one: compare it with what is there now, before you act.

    `progress` and `partial` may be called from any thread, and as often as the tool likes. Whoever follows a run sees
    them; of a call that is answered in its own request only an MCP client that asks for it hears, of progress alone.
    """

    call_id: str
    tenant: str
    user: str
    agent: str
    session: str | None
    key: str
    attempt: int
    seconds_left: float
    traceparent: str | None
    credential: Secret | None = None
    restored: Any = None
    guards: Mapping[str, Any] = field(default_factory=dict)
    # What the caller can be asked back, and what it said to what was asked before; for tools of servers.
    can_answer: frozenset[Ability] = NONE
    round: Round | None = field(default=None, repr=False)
    # Who keeps what is saved; nobody where there is nothing to go on with, as for a read inside a request.
    saving: Save | None = field(default=None, repr=False)
    tell: Callable[[Told], None] | None = field(default=None, repr=False)
    stopping: Callable[[], bool] | None = field(default=None, repr=False)

    @property
    def cancel_asked(self) -> bool:
        """Whether somebody asked the call to stop. An async tool is canceled for it; one in a thread has to look, and
        says with `Canceled` that it stopped.
        """
        return self.stopping is not None and self.stopping()

    def progress(self, done: float | None = None, total: float | None = None, message: str = "") -> None:
        """How far the tool is: `done` of `total`, in whatever it counts; either may be left out."""
        for number in (done, total):
            if number is not None and not math.isfinite(number):
                raise ValueError("done and total are finite numbers, or left out")
        if self.tell is not None:
            self.tell(Told(done=done, total=total, message=str(message)[:LONGEST_MESSAGE]))

    def partial(self, value: Any) -> None:
        """A part of the result, in the shape of the result, for whoever follows the call. What is returned counts."""
        written = orjson.dumps(value)
        if len(written) > LARGEST_PARTIAL:
            raise ValueError(f"a part of a result may have {LARGEST_PARTIAL} bytes, not {len(written)}")
        if self.tell is not None:
            self.tell(Told(partial=written))

    async def save(self, state: Any, *, name: str | None = None, macro: bool = False) -> None:
        """Saves how far the tool is, for tools whose contract enables checkpoints. `state` is plain JSON.

        Say it as often as you like: without more, it is stored once per interval, the newest always. A milestone
        (`macro`) is stored at once; one with a `name` too, and a person can have the run go on from there again.
        """
        if self.saving is not None:
            await self.saving(state, name, macro)
