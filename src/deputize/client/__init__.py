"""Call tools from Python: `async with Client(url, token) as d: reply = await d.call("crm.get_user", id=7)`.

Every call has an idempotency key, so repeating it is safe, and it is repeated only if the error is retryable.
`SyncClient` is the same without `await`. Both only perform the steps of `client/protocol.py`. Nothing of the gateway
but `core` is imported.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx2

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

__all__ = ["CallFailed", "Client", "DeputizeError", "Failure", "Reply", "SyncClient", "Unreachable"]

T = TypeVar("T")


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
        check: bool = True,
        **more: Any,
    ) -> Reply:
        """Call a tool. Give arguments by name, or in a mapping if a name is also an option here.

        Raises `CallFailed` unless `check` is False. Two calls are two steps with two keys, unless they have the same
        `step` or `key`. With `mode="async"`, and whenever the gateway replies before the call has ended, the reply is
        `pending`: use `wait`. With `may_continue`, a call continues after its `deadline_ms`, where that is safe. With
        `dry_run`, the call has no effect, and the reply's `preview` says what it would do.
        """
        steps = self._protocol.call(
            tool, arguments, more, key=key, step=step, version=version, deadline_ms=deadline_ms,
            traceparent=traceparent, check=check,
            options={"mode": mode, "priority": priority, "continue": may_continue, "callback": callback},
            dry_run=bool(dry_run),
        )  # fmt: skip
        return await self._run(steps)

    async def tools(self, *, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """List a page of the tools you can call; continue with `after=page["next_after"]`."""
        return await self._run(self._protocol.tools(after, limit))

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
    """A client for programs without asyncio, with the methods of `Client`."""

    def __enter__(self) -> Self:
        self._http = httpx2.Client(base_url=self._protocol.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

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
        check: bool = True,
        **more: Any,
    ) -> Reply:
        """Call a tool, as `Client.call` does."""
        steps = self._protocol.call(
            tool, arguments, more, key=key, step=step, version=version, deadline_ms=deadline_ms,
            traceparent=traceparent, check=check,
            options={"mode": mode, "priority": priority, "continue": may_continue, "callback": callback},
            dry_run=bool(dry_run),
        )  # fmt: skip
        return self._run(steps)

    def tools(self, *, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
        return self._run(self._protocol.tools(after, limit))

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
            response = self._http.request(
                step.method, step.path, headers=step.headers, content=step.content, timeout=step.seconds
            )
        except httpx2.TransportError as error:
            return StepResponse(transport_error=error)
        return StepResponse(status=response.status_code, headers=response.headers, body=response.content)
