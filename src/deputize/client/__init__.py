"""Call tools from Python: `async with Client(url, token) as d: reply = await d.call("crm.get_user", id=7)`.

Every call has an idempotency key, so repeating it is safe, and it is repeated only if the error is retryable.
`SyncClient` is the same without `await`. Both only perform the steps of `client/protocol.py`. Nothing of the gateway
but `core` is imported.
"""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx2

from deputize.client.model_tools import (
    MAX_PARALLEL_CALLS,
    ModelApi,
    ModelCall,
    ModelResult,
    build_messages,
    check_model_api,
    describe_reply,
    get_definition_name,
    list_model_calls,
    refuse_call,
)
from deputize.client.protocol import (
    CallFailed,
    ClientProtocol,
    DeputizeError,
    Failure,
    Reply,
    SendStep,
    StepResponse,
    Steps,
    Unreachable,
    WaitStep,
)

__all__ = [
    "CallFailed",
    "Client",
    "DeputizeError",
    "Failure",
    "ModelCall",
    "ModelResult",
    "ModelTools",
    "Reply",
    "SyncClient",
    "SyncModelTools",
    "Unreachable",
]

T = TypeVar("T")
OnFailure = Literal["ignore", "cancel_siblings", "cancel_dependent"]


class _BaseClient:
    """What both clients share. They differ only in how they perform a step."""

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        *,
        session: str | None = None,
        secret: bytes | None = None,
        attempts: int = 4,
    ) -> None:
        """Create a client. With `session` and `secret`, and named steps, a restarted program repeats its calls instead
        of making them twice. `token` may be a function that returns a fresh token. `attempts` includes the first.
        """
        self._protocol = ClientProtocol(url, token, session, secret, attempts)
        self._connect_lock = threading.Lock()

    @property
    def session(self) -> str:
        """The session that all calls of this client belong to."""
        return self._protocol.session


class Client(_BaseClient):
    """A client for asyncio. Use it as a context manager, once per session, for any number of concurrent calls."""

    async def __aenter__(self) -> Self:
        self._http = httpx2.AsyncClient(base_url=self._protocol.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        key: str | None = None,
        step: str | None = None,
        version: str | None = None,
        deadline_ms: int | None = None,
        traceparent: str | None = None,
        mode: Literal["sync", "async"] | None = None,
        priority: int | None = None,
        may_continue: bool | None = None,
        callback: Mapping[str, Any] | None = None,
        dry_run: bool | None = None,
        max_age_seconds: int | None = None,
        check: bool = True,
        **more: Any,
    ) -> Reply:
        """Call a tool. Give arguments by name, or in a mapping if a name is also an option here.

        Raises `CallFailed` unless `check` is False. Two calls are two steps with two keys, unless they have the same
        `step` or `key`. With `mode="async"`, and whenever the gateway replies before the call has ended, the reply is
        `pending`: use `wait`. With `may_continue`, a call continues after its `deadline_ms`, where that is safe. With
        `dry_run`, the call has no effect, and the reply's `preview` says what it would do. With
        `max_age_seconds`, the result of a read is not older; 0 demands a new one.
        """
        steps = self._protocol.call(
            tool, arguments, more, key=key, step=step, version=version, deadline_ms=deadline_ms,
            traceparent=traceparent, check=check,
            options={
                "mode": mode, "priority": priority, "continue": may_continue, "callback": callback,
                "max_age_seconds": max_age_seconds,
            },
            dry_run=bool(dry_run),
        )  # fmt: skip
        return await self._run(steps)

    async def call_many(
        self, calls: Sequence[Mapping[str, Any]], *, on_failure: OnFailure = "cancel_dependent"
    ) -> list[Reply]:
        """Call up to 50 tools in one request: side by side, but for calls that may change the same resources.

        Each call has the fields of `POST /v1/calls`, such as `tool` and `arguments`; it may have `idempotency_key`, and
        `depends_on` with the positions of earlier calls. Failures are in the replies, which are in the order of the
        calls; nothing but a refusal of the whole request raises `CallFailed`. A call that failed is not retried.
        """
        return await self._run(self._protocol.call_many(calls, on_failure))

    async def tools(self, *, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """List a page of the tools you can call; continue with `after=page["next_after"]`."""
        return await self._run(self._protocol.tools(after, limit))

    async def model_tools(
        self, api: ModelApi, names: Sequence[str] | None = None, *, conversation: str | None = None
    ) -> "ModelTools":
        """Load tools in the shape of a model API: these, or all that you can call.

        `conversation` names the conversation: the idempotency keys of its calls are derived from it and the model's ids
        of the calls. Default: the session of this client.
        """
        check_model_api(api)
        definitions = await self._run(self._protocol.export_tools(names, api))
        return ModelTools(self, api, definitions, conversation or self.session)

    async def search(self, query: str, *, limit: int | None = None) -> dict[str, Any]:
        """Search the tools you can call, best match first."""
        return await self._run(self._protocol.search(query, limit))

    async def tool(self, name: str, *, version: str | None = None) -> dict[str, Any]:
        """Show one tool with its schemas."""
        return await self._run(self._protocol.tool(name, version))

    async def calls(self, *, before: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """List a page of your calls, newest first; continue with `before=page["next_before"]`."""
        return await self._run(self._protocol.calls(before, limit))

    async def show(self, call_id: str) -> dict[str, Any]:
        """Show one call."""
        return await self._run(self._protocol.show(call_id))

    async def cancel(self, call_id: str) -> dict[str, Any]:
        """Request that a call is canceled."""
        return await self._run(self._protocol.cancel(call_id))

    async def wait(self, call_id: str, *, seconds: float | None = None, check: bool = True) -> Reply:
        """Wait for the end of a pending call; the reply is still `pending` after `seconds`. Raises `CallFailed` unless
        `check` is False.
        """
        return await self._run(self._protocol.wait(call_id, seconds=seconds, check=check))

    async def retry(self, call_id: str) -> Reply:
        """Retry a failed call; raises `CallFailed` if that is not safe."""
        return await self._run(self._protocol.retry(call_id))

    async def _run(self, steps: Steps[T]) -> T:
        answer: StepResponse | None = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, WaitStep):
                    await asyncio.sleep(step.seconds)
                    answer = None
                else:
                    answer = await self._perform(step)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _perform(self, step: SendStep) -> StepResponse:
        try:
            response = await self._http.request(
                step.method, step.path, headers=step.headers, content=step.content, timeout=step.seconds
            )
        except httpx2.TransportError as error:
            return StepResponse(transport_error=error)
        return StepResponse(status=response.status_code, headers=response.headers, body=response.content)


class SyncClient(_BaseClient):
    """A client for programs without asyncio, with the methods of `Client`.

    It connects at its first call. `close()`, the end of a `with` block, or the garbage collector closes its
    connections; a later call connects again.
    """

    _http: httpx2.Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._connect_lock:
            if self._http is not None:
                # Runs httpx2's own close once, here or when this client is collected, and never twice.
                self._finalizer()
                self._http = None

    def _connect(self) -> httpx2.Client:
        """Return the HTTP client; threads that call first at the same time share one."""
        with self._connect_lock:
            if self._http is None:
                self._http = httpx2.Client(base_url=self._protocol.url)
                self._finalizer = weakref.finalize(self, self._http.close)
            return self._http

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        key: str | None = None,
        step: str | None = None,
        version: str | None = None,
        deadline_ms: int | None = None,
        traceparent: str | None = None,
        mode: Literal["sync", "async"] | None = None,
        priority: int | None = None,
        may_continue: bool | None = None,
        callback: Mapping[str, Any] | None = None,
        dry_run: bool | None = None,
        max_age_seconds: int | None = None,
        check: bool = True,
        **more: Any,
    ) -> Reply:
        """Call a tool, as `Client.call` does."""
        steps = self._protocol.call(
            tool, arguments, more, key=key, step=step, version=version, deadline_ms=deadline_ms,
            traceparent=traceparent, check=check,
            options={
                "mode": mode, "priority": priority, "continue": may_continue, "callback": callback,
                "max_age_seconds": max_age_seconds,
            },
            dry_run=bool(dry_run),
        )  # fmt: skip
        return self._run(steps)

    def call_many(
        self, calls: Sequence[Mapping[str, Any]], *, on_failure: OnFailure = "cancel_dependent"
    ) -> list[Reply]:
        """Call up to 50 tools in one request, as `Client.call_many` does."""
        return self._run(self._protocol.call_many(calls, on_failure))

    def tools(self, *, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
        return self._run(self._protocol.tools(after, limit))

    def model_tools(
        self, api: ModelApi, names: Sequence[str] | None = None, *, conversation: str | None = None
    ) -> "SyncModelTools":
        """Load tools in the shape of a model API, as `Client.model_tools` does."""
        check_model_api(api)
        definitions = self._run(self._protocol.export_tools(names, api))
        return SyncModelTools(self, api, definitions, conversation or self.session)

    def search(self, query: str, *, limit: int | None = None) -> dict[str, Any]:
        return self._run(self._protocol.search(query, limit))

    def tool(self, name: str, *, version: str | None = None) -> dict[str, Any]:
        return self._run(self._protocol.tool(name, version))

    def calls(self, *, before: str | None = None, limit: int | None = None) -> dict[str, Any]:
        return self._run(self._protocol.calls(before, limit))

    def show(self, call_id: str) -> dict[str, Any]:
        return self._run(self._protocol.show(call_id))

    def cancel(self, call_id: str) -> dict[str, Any]:
        return self._run(self._protocol.cancel(call_id))

    def wait(self, call_id: str, *, seconds: float | None = None, check: bool = True) -> Reply:
        return self._run(self._protocol.wait(call_id, seconds=seconds, check=check))

    def retry(self, call_id: str) -> Reply:
        return self._run(self._protocol.retry(call_id))

    def _run(self, steps: Steps[T]) -> T:
        answer: StepResponse | None = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, WaitStep):
                    time.sleep(step.seconds)
                    answer = None
                else:
                    answer = self._perform(step)
        except StopIteration as end:
            result: T = end.value
            return result

    def _perform(self, step: SendStep) -> StepResponse:
        try:
            response = self._connect().request(
                step.method, step.path, headers=step.headers, content=step.content, timeout=step.seconds
            )
        except httpx2.TransportError as error:
            return StepResponse(transport_error=error)
        return StepResponse(status=response.status_code, headers=response.headers, body=response.content)


class _BaseModelTools:
    """Tools for one conversation with a model: `definitions` are in the shape of its API."""

    def __init__(self, api: ModelApi, definitions: list[dict[str, Any]], conversation: str) -> None:
        self.api: ModelApi = api
        self.definitions = definitions
        self.conversation = conversation
        self._names = frozenset(get_definition_name(api, each) for each in definitions)


class ModelTools(_BaseModelTools):
    """Tools for a model, with asyncio. `Client.model_tools` makes it."""

    def __init__(self, client: Client, api: ModelApi, definitions: list[dict[str, Any]], conversation: str) -> None:
        super().__init__(api, definitions, conversation)
        self._client = client
        self._slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)

    async def run(self, reply: Any) -> list[dict[str, Any]]:
        """Execute the tool calls of a model's reply side by side; return the messages that answer it, empty if it made
        none. Refusals and pending approvals are results that the model can read. Raises `Unreachable` if the gateway
        does not answer: run the same reply again, and no call acts twice.
        """
        return build_messages(self.api, await self.run_calls(list_model_calls(self.api, reply)))

    async def run_calls(self, calls: Sequence[ModelCall]) -> list[ModelResult]:
        """Execute tool calls, and return their results with the replies of the gateway."""
        return list(await asyncio.gather(*(self._run_call(each) for each in calls)))

    async def _run_call(self, call: ModelCall) -> ModelResult:
        refusal = refuse_call(call, self._names)
        if refusal is not None:
            return refusal
        async with self._slots:
            key = call.derive_key(self.conversation)
            return describe_reply(call, await self._client.call(call.name, call.arguments, key=key, check=False))


class SyncModelTools(_BaseModelTools):
    """Tools for a model, without asyncio. `SyncClient.model_tools` makes it."""

    def __init__(self, client: SyncClient, api: ModelApi, definitions: list[dict[str, Any]], conversation: str) -> None:
        super().__init__(api, definitions, conversation)
        self._client = client

    def run(self, reply: Any) -> list[dict[str, Any]]:
        """Execute the tool calls of a model's reply, as `ModelTools.run` does."""
        return build_messages(self.api, self.run_calls(list_model_calls(self.api, reply)))

    def run_calls(self, calls: Sequence[ModelCall]) -> list[ModelResult]:
        """Execute tool calls, and return their results with the replies of the gateway."""
        with ThreadPoolExecutor(max_workers=MAX_PARALLEL_CALLS) as threads:
            return list(threads.map(self._run_call, calls))

    def _run_call(self, call: ModelCall) -> ModelResult:
        refusal = refuse_call(call, self._names)
        if refusal is not None:
            return refusal
        key = call.derive_key(self.conversation)
        return describe_reply(call, self._client.call(call.name, call.arguments, key=key, check=False))
