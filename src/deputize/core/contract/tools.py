"""Define what a call runs: a function of this process, a tool of an MCP server, or an operation of an HTTP service; and
what a running tool can use.

`catalog/importers/python.py` makes the first and `execute/drivers/python.py` runs them; `execute/drivers/mcp.py` and
`execute/drivers/http.py` find the others.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Self

import orjson

from deputize.core.contract.availability import AdmittedDrift
from deputize.core.contract.command import Command
from deputize.core.contract.contract import Contract
from deputize.core.contract.http_request import HttpPagination, HttpRequest
from deputize.core.contract.isolation import BackendDemand
from deputize.core.mcp.elicitation import NO_CAPABILITIES, ClientCapability, InputRound
from deputize.core.mcp.servers import CALL_TOOL
from deputize.core.value_types import frozen

MAX_MESSAGE_LENGTH: Final = 500
MAX_PARTIAL_BYTES: Final = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonTool:
    """A Python function as a tool. `run` takes the arguments as keywords, and `context` if it has that parameter.

    `validate(**arguments)` raises before any effect; `verify(arguments, output)` raises on a wrong result.
    `preview(**arguments)` returns a `Preview` of what `run` would do, and takes `context` if it has that parameter.
    `read_state(**arguments)` returns the state that `run` could change, as JSON. `rollback(arguments, output)` takes
    back what a call did whose result was rejected.
    `declaration` is what the function declares itself, if `contract` is a manifest's. `code_digest` is the digest of
    the loaded code; empty if the function was not loaded from a project's files. `backend` is that of the sandbox in
    which the function does its work; only the gateway's own functions have one.
    """

    contract: Contract
    run: Callable[..., Any]
    is_async: bool
    declaration: Contract | None = None
    code_digest: str = ""
    backend: str | None = None
    takes_context: bool = False
    validate: Callable[..., Any] | None = None
    verify: Callable[..., Any] | None = None
    preview: Callable[..., Any] | None = None
    previews_with_context: bool = False
    read_state: Callable[..., Any] | None = None
    rollback: Callable[..., Any] | None = None

    @property
    def target(self) -> str:
        return self.contract.handler.target


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteTool:
    """A tool that runs elsewhere. It has no checks and no preview of its own: a dry run reports what the contract
    declares.
    """

    contract: Contract
    is_async: ClassVar[bool] = True
    takes_context: ClassVar[bool] = True
    validate: ClassVar[None] = None
    verify: ClassVar[None] = None
    preview: ClassVar[None] = None
    previews_with_context: ClassVar[bool] = False
    read_state: ClassVar[None] = None
    rollback: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class UpstreamTool(RemoteTool):
    """A tool or another method of an MCP server, under the server's own name for it."""

    server: str
    name: str
    method: str = CALL_TOOL


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTool(RemoteTool):
    """An operation of an HTTP service, and the request that it is."""

    service: str
    request: HttpRequest
    pagination: HttpPagination | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpcTool(RemoteTool):
    """A method of a gRPC service, and the request that it is."""

    service: str
    request: HttpRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandTool(RemoteTool):
    """A program that runs in a sandbox, and how it is called."""

    service: str
    command: Command


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowTool(RemoteTool):
    """A flow. It has no code: its steps are calls of other tools, which `lifecycle/durable/flow_run.py` makes."""

    # The module that declares it; empty if a manifest does.
    module: str = ""
    code_digest: ClassVar[str] = ""
    declaration: ClassVar[None] = None


AnyTool = PythonTool | UpstreamTool | HttpTool | GrpcTool | CommandTool | FlowTool
# What the files of a project declare.
ProjectTool = PythonTool | FlowTool


class SecretClosed(RuntimeError):
    """A credential was read after its attempt had ended."""


class Secret:
    """A credential for one attempt of one call. Only `reveal()` shows it, and only until it is closed.

    A tool that keeps what `reveal()` returned keeps it: Python cannot take a string back. `further` are those that go
    with it, and are closed with it.
    """

    __slots__ = ("_value", "further", "name")

    def __init__(self, value: str, *, name: str = "") -> None:
        self.name = name
        self.further: tuple[Secret, ...] = ()
        self._value: str | None = value

    def reveal(self) -> str:
        """Return the credential; raise `SecretClosed` once the attempt has ended."""
        if self._value is None:
            raise SecretClosed("this credential was for one attempt of a call, and that attempt has ended")
        return self._value

    def close(self) -> None:
        """Forget the credential, and those that go with it."""
        self._value = None
        for secret in self.further:
            secret.close()

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"

    def __copy__(self) -> Self:
        """Return the same handle, which is closed with the original."""
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential cannot be pickled")


@frozen
class ToolProgress:
    """Progress that a running tool reports: how far it is, or a part of its result as JSON."""

    current: float | None = None
    total: float | None = None
    message: str = ""
    partial: bytes | None = None


@frozen
class FetchedPage:
    """The answer to a GET; `url` is where it was found. The names of headers are in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


# Gets a URL of a host that the operator listed, with headers, within so many seconds; raises the Problem otherwise.
FetchPage = Callable[[str, Mapping[str, str], float], Awaitable[FetchedPage]]


@frozen
class FolderRun:
    """How a program ended that ran on a copy of a folder, by whom, and what it wrote."""

    ended_by: str
    exit_code: int | None
    stdout: str
    stderr: str


# Opens a folder that nobody changes until it is closed.
OpenFolder = Callable[[], AbstractContextManager[Path]]
# Runs a program of the operator on a copy of a folder, in a sandbox, within so many seconds.
RunInFolder = Callable[[Sequence[str], OpenFolder, float], Awaitable[FolderRun]]
# Runs a job from bytes to bytes in a process of its own, which may compute for so many seconds; None if it was ended.
RunJob = Callable[[Callable[[bytes], bytes], bytes, int], Awaitable[bytes | None]]
# Takes the state, the name of the checkpoint, and whether it is a milestone.
SaveCheckpoint = Callable[[Any, str | None, bool], Awaitable[None]]


@frozen
class BrowserPage:
    """The page of a browser session, while a call uses it.

    `send` gives the browser a command of its debugging protocol, and returns the answer. `settle` waits until the page
    has come to rest, or for as long as is sensible. `read_id` is the id of the document that is shown now.
    `run_on_tree` runs a job in a process of its own, on a line of text and the browser's answer with the accessibility
    tree, which may be large. `allow_writes` lets the page write to the origin of a URL, until the call ends. `attempts`
    is what it connected to as `host:port`, with the reason if it did not; true if that was refused.
    """

    session: str
    send: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
    settle: Callable[[], Awaitable[None]]
    read_id: Callable[[], str]
    run_on_tree: Callable[[Callable[[bytes], bytes], bytes], Awaitable[bytes]]
    allow_writes: Callable[[str], None]
    attempts: Mapping[tuple[str, str | None], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a running tool knows about its call. `key` is the idempotency key for an upstream that deduplicates.
    `credential` is what the contract's `auth` declares, open only while the tool runs. `saved_state` is the last saved
    state, if another worker or an earlier attempt saved one. `guards` come from the tool's preview, if an approver
    decided on one: compare them with the current state before you act.

    `progress` and `partial` may be called from any thread, as often as the tool likes. Followers of a run see both.
    While a caller waits for a call, only clients that request progress see it, over MCP or gRPC.
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
    saved_state: Any = None
    guards: Mapping[str, Any] = field(default_factory=dict)
    # What the client can answer, and its input responses; for tools of MCP servers.
    client_capabilities: frozenset[ClientCapability] = NO_CAPABILITIES
    input_round: InputRound | None = field(default=None, repr=False)
    # Which calls rules let pass by a tool that its server changed; for tools of MCP servers.
    admitted_drift: AdmittedDrift = AdmittedDrift.NONE
    # The sandboxes that rules demand; for commands.
    backend_demands: tuple[BackendDemand, ...] = ()
    # Which of its service's URLs the attempt goes to; for operations of HTTP services.
    endpoint: int = 0
    # The whole delegation chain, nearest agent first; `agent` is the first of them.
    agents: tuple[str, ...] = ()
    # None if nothing could resume from a checkpoint, as for a read inside a request.
    save_checkpoint: SaveCheckpoint | None = field(default=None, repr=False)
    report_progress: Callable[[ToolProgress], None] | None = field(default=None, repr=False)
    should_stop: Callable[[], bool] | None = field(default=None, repr=False)
    # Whether the caller may read the stored result of a call: of which tool, and by which user, agents and delegation.
    may_read_result: Callable[[str, str, str | None], Awaitable[bool]] | None = field(default=None, repr=False)

    @property
    def is_cancel_requested(self) -> bool:
        """True once the call is to be canceled. An async tool is canceled; a tool in a thread has to check this, and
        raises `Canceled` when it stopped.
        """
        return self.should_stop is not None and self.should_stop()

    def progress(self, current: float | None = None, total: float | None = None, message: str = "") -> None:
        """Report progress: `current` of `total`, in any unit; either may be left out."""
        for number in (current, total):
            if number is not None and not math.isfinite(number):
                raise ValueError("current and total must be finite numbers or None")
        if self.report_progress is not None:
            self.report_progress(ToolProgress(current=current, total=total, message=str(message)[:MAX_MESSAGE_LENGTH]))

    def partial(self, value: Any) -> None:
        """Report a part of the result, in its shape, to followers of the call. Only the return value counts."""
        data = orjson.dumps(value)
        if len(data) > MAX_PARTIAL_BYTES:
            raise ValueError(f"a partial result may have at most {MAX_PARTIAL_BYTES} bytes; got {len(data)}")
        if self.report_progress is not None:
            self.report_progress(ToolProgress(partial=data))

    async def save(self, state: Any, *, name: str | None = None, macro: bool = False) -> None:
        """Save a checkpoint, for tools whose contract enables checkpoints. `state` is plain JSON.

        Call it as often as you like: the newest state is stored once per interval. A milestone (`macro`) or a state
        with a `name` is stored at once; a run can be rolled back to a name.
        """
        if self.save_checkpoint is not None:
            await self.save_checkpoint(state, name, macro)


# Opens a session of the caller, or a new one, for one call. The URL is what will be shown, which must be at a listed
# host. Nothing that the page does leaves it but GET and HEAD.
UseBrowser = Callable[[ToolContext, str, str | None], AbstractAsyncContextManager[BrowserPage]]
