"""The Python client: `async with Client(url, token) as d: reply = await d.call("crm.get_user", id=7)`.

Every call carries an idempotency key, so repeating it is safe, and it is repeated only when the answer says that
trying again may help. `SyncClient` is the same without `await`. Both only carry out the steps of `rules.py`.

Above: programs that use the gateway from outside. Below: `core` and httpx2; nothing of the gateway is imported.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx2

from deputize.client.rules import (
    Answer,
    CallFailed,
    DeputizeError,
    Failure,
    Reply,
    Rules,
    Send,
    Steps,
    Unreachable,
    Wait,
)

__all__ = ["CallFailed", "Client", "DeputizeError", "Failure", "Reply", "SyncClient", "Unreachable"]

T = TypeVar("T")


class _Requests:
    """What can be asked, as steps. The two clients below differ only in how a step is carried out."""

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        *,
        session: str | None = None,
        secret: bytes | None = None,
        attempts: int = 4,
    ) -> None:
        """`session` and `secret` given, and steps named, a restarted program repeats its calls instead of making
        them twice. `token` may be a function that returns a fresh one. `attempts` counts the first try too.
        """
        self._rules = Rules(url, token, session, secret, attempts)

    @property
    def session(self) -> str:
        return self._rules.session


class Client(_Requests):
    """For asyncio programs. Use it as a context manager, once per session, for any number of calls at a time."""

    async def __aenter__(self) -> Self:
        self._http = httpx2.AsyncClient(base_url=self._rules.url)
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
        """Calls a tool. Arguments are given by name, or in a mapping where a name is also an option here.

        Raises `CallFailed` unless `check` is False. Two calls are two steps, and so two keys, unless they name the
        same `step` or `key`. In `mode="async"`, and whenever the gateway answers before the end, the reply is
        `pending`: `wait` for it. With `may_continue`, a call whose `deadline_ms` is over goes on, where that is safe.
        With `dry_run` nothing is done, and the reply's `preview` says what would be.
        """
        steps = self._rules.call(
            tool, arguments, more, key=key, step=step, version=version, deadline_ms=deadline_ms,
            traceparent=traceparent, check=check,
            options={"mode": mode, "priority": priority, "continue": may_continue, "callback": callback},
            dry_run=bool(dry_run),
        )  # fmt: skip
        return await self._run(steps)

    async def tools(self, *, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """A page of the tools you can call; go on with `after=page["next_after"]`."""
        return await self._run(self._rules.tools(after, limit))

    async def search(self, query: str, *, limit: int | None = None) -> dict[str, Any]:
        return await self._run(self._rules.search(query, limit))

    async def tool(self, name: str, *, version: str | None = None) -> dict[str, Any]:
        return await self._run(self._rules.tool(name, version))

    async def calls(self, *, before: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """A page of your calls, newest first; go on with `before=page["next_before"]`."""
        return await self._run(self._rules.calls(before, limit))

    async def show(self, call_id: str) -> dict[str, Any]:
        return await self._run(self._rules.show(call_id))

    async def cancel(self, call_id: str) -> dict[str, Any]:
        return await self._run(self._rules.cancel(call_id))

    async def wait(self, call_id: str, *, seconds: float | None = None, check: bool = True) -> Reply:
        """How a call ended that was answered before it did; still `pending` if `seconds` were not enough. Raises
        `CallFailed` unless `check` is False.
        """
        return await self._run(self._rules.wait(call_id, seconds=seconds, check=check))

    async def retry(self, call_id: str) -> Reply:
        """A queued call that came to no good end, once more, where that can do no harm; `CallFailed` where it can."""
        return await self._run(self._rules.retry(call_id))

    async def _run(self, steps: Steps[T]) -> T:
        answer: Answer | None = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    answer = None
                else:
                    answer = await self._perform(step)
        except StopIteration as end:
            ended: T = end.value
            return ended

    async def _perform(self, step: Send) -> Answer:
        try:
            response = await self._http.request(
                step.method, step.path, headers=step.headers, content=step.content, timeout=step.seconds
            )
        except httpx2.TransportError as error:
            return Answer(lost=error)
        return Answer(status=response.status_code, headers=response.headers, body=response.content)


class SyncClient(_Requests):
    """For programs without asyncio; otherwise exactly `Client`."""

    def __enter__(self) -> Self:
        self._http = httpx2.Client(base_url=self._rules.url)
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
        """As `Client.call`."""
        steps = self._rules.call(
            tool, arguments, more, key=key, step=step, version=version, deadline_ms=deadline_ms,
            traceparent=traceparent, check=check,
            options={"mode": mode, "priority": priority, "continue": may_continue, "callback": callback},
            dry_run=bool(dry_run),
        )  # fmt: skip
        return self._run(steps)

    def tools(self, *, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
        return self._run(self._rules.tools(after, limit))

    def search(self, query: str, *, limit: int | None = None) -> dict[str, Any]:
        return self._run(self._rules.search(query, limit))

    def tool(self, name: str, *, version: str | None = None) -> dict[str, Any]:
        return self._run(self._rules.tool(name, version))

    def calls(self, *, before: str | None = None, limit: int | None = None) -> dict[str, Any]:
        return self._run(self._rules.calls(before, limit))

    def show(self, call_id: str) -> dict[str, Any]:
        return self._run(self._rules.show(call_id))

    def cancel(self, call_id: str) -> dict[str, Any]:
        return self._run(self._rules.cancel(call_id))

    def wait(self, call_id: str, *, seconds: float | None = None, check: bool = True) -> Reply:
        return self._run(self._rules.wait(call_id, seconds=seconds, check=check))

    def retry(self, call_id: str) -> Reply:
        return self._run(self._rules.retry(call_id))

    def _run(self, steps: Steps[T]) -> T:
        answer: Answer | None = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Wait):
                    time.sleep(step.seconds)
                    answer = None
                else:
                    answer = self._perform(step)
        except StopIteration as end:
            ended: T = end.value
            return ended

    def _perform(self, step: Send) -> Answer:
        try:
            response = self._http.request(
                step.method, step.path, headers=step.headers, content=step.content, timeout=step.seconds
            )
        except httpx2.TransportError as error:
            return Answer(lost=error)
        return Answer(status=response.status_code, headers=response.headers, body=response.content)
