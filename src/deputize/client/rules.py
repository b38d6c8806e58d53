"""What to send, what an answer means and when to try again: generators that do no I/O, so that the two clients
cannot differ. They yield steps, are sent answers, and return what the program asked for.
"""

import hmac
import itertools
import os
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import orjson

from deputize.core.canonical import canonical

_BASE_SECONDS = 0.1
_MOST_SECONDS = 10.0
_UNBOUNDED_WAIT = 330.0
_GRACE = 5.0
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What went wrong, as the gateway says it: branch on `code`, show `message` and `advice` to people."""

    status: int
    code: str
    number: str
    error_class: str
    slug: str
    message: str
    advice: str
    retryable: bool
    retry_after_ms: int | None
    details: Mapping[str, Any]
    trace_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """How a call ended. `envelope` is everything the gateway said; `failure` is None if the call succeeded."""

    result: Any
    state: str
    call_id: str
    envelope: Mapping[str, Any]
    failure: Failure | None = None
    replayed: bool = False
    joined: bool = False
    attempts: int = 1

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def preview(self) -> Mapping[str, Any] | None:
        """What the call would do, if it was a dry run; None for any other."""
        shown: Mapping[str, Any] | None = self.envelope.get("preview")
        return shown

    @property
    def approval(self) -> Mapping[str, Any] | None:
        """Who has to agree before the call goes on, and until when; None where nobody has to."""
        asked: Mapping[str, Any] | None = self.envelope.get("approval")
        return asked

    @property
    def pending(self) -> bool:
        """Taken on and not at its end yet: `wait` for it."""
        return "poll_after_ms" in self.envelope


class DeputizeError(Exception):
    """Anything that kept a request from being answered as asked."""


class Unreachable(DeputizeError):
    """No answer came. A call may or may not have been made: repeat it with the same key to find out."""


class CallFailed(DeputizeError):
    """The gateway said no, or the tool failed; `failure` tells which, and `reply` has the envelope of a call."""

    def __init__(self, failure: Failure, reply: Reply | None = None) -> None:
        super().__init__(f"{failure.message} ({failure.number} {failure.slug}). {failure.advice}")
        self.failure = failure
        self.reply = reply


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came back; `lost` instead of everything else when nothing did."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    lost: Exception | None = None


Steps: TypeAlias = Generator[Send | Wait, Answer | None, T]


class Rules:
    """One session's view of a gateway: what to send, what it means, when to try again."""

    def __init__(
        self, url: str, token: str | Callable[[], str], session: str | None, secret: bytes | None, attempts: int
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.session = session or str(uuid.uuid4())
        self._token = token
        self._secret = secret or os.urandom(32)
        self._attempts = attempts
        self._steps = itertools.count(1)

    def key(self, tool: str, arguments: Mapping[str, Any], step: str) -> str:
        """HMAC-SHA256 over session, tool, step and canonical arguments: the same step asks for the same thing."""
        said = "\0".join((self.session, tool, step)).encode() + b"\0" + canonical(dict(arguments))
        return hmac.digest(self._secret, said, "sha256").hex()

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        more: Mapping[str, Any],
        *,
        key: str | None,
        step: str | None,
        version: str | None,
        deadline_ms: int | None,
        traceparent: str | None,
        check: bool,
        options: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> Steps[Reply]:
        asked = {**(arguments or {}), **more}
        body: dict[str, Any] = {"tool": tool, "arguments": asked, "session": self.session}
        body |= {name: value for name, value in (options or {}).items() if value is not None}
        if version is not None:
            body["version"] = version
        if step is not None:
            body["step"] = step
        headers: dict[str, str] = {}
        if dry_run:
            # It is no step: what is called after it has the same keys as without it.
            body["dry_run"] = True
        else:
            headers["idempotency-key"] = key or self.key(tool, asked, step or f"#{next(self._steps)}")
        if traceparent is not None:
            headers["traceparent"] = traceparent
        answer, attempts = yield from self._persistently("POST", "/v1/calls", headers, body, deadline_ms)
        reply = _reply(answer, attempts)
        if check and reply.failure is not None:
            raise CallFailed(reply.failure, reply)
        return reply

    def tools(self, after: str | None, limit: int | None) -> Steps[dict[str, Any]]:
        return self._ask("GET", "/v1/tools", after=after, limit=limit)

    def search(self, query: str, limit: int | None) -> Steps[dict[str, Any]]:
        return self._ask("GET", "/v1/tools/search", q=query, limit=limit)

    def tool(self, name: str, version: str | None) -> Steps[dict[str, Any]]:
        return self._ask("GET", f"/v1/tools/{quote(name, safe='')}", version=version)

    def calls(self, before: str | None, limit: int | None) -> Steps[dict[str, Any]]:
        return self._ask("GET", "/v1/calls", before=before, limit=limit)

    def show(self, call_id: str) -> Steps[dict[str, Any]]:
        return self._ask("GET", f"/v1/calls/{quote(call_id, safe='')}")

    def cancel(self, call_id: str) -> Steps[dict[str, Any]]:
        return self._ask("POST", f"/v1/calls/{quote(call_id, safe='')}/cancel")

    def retry(self, call_id: str) -> Steps[Reply]:
        path = f"/v1/calls/{quote(call_id, safe='')}/retry"
        answer, attempts = yield from self._persistently("POST", path, {}, None, None)
        reply = _reply(answer, attempts)
        if reply.failure is not None:
            raise CallFailed(reply.failure, reply)
        return reply

    def wait(self, call_id: str, *, seconds: float | None, check: bool) -> Steps[Reply]:
        """Looks as often as the gateway advises, until the call has ended or the time is over."""
        path, ends = f"/v1/calls/{quote(call_id, safe='')}", None if seconds is None else time.monotonic() + seconds
        while True:
            answer, attempts = yield from self._persistently("GET", path, {}, None, None)
            reply = _reply(answer, attempts)
            left = None if ends is None else ends - time.monotonic()
            if not reply.pending or (left is not None and left <= 0):
                break
            pause = reply.envelope["poll_after_ms"] / 1000
            yield Wait(pause if left is None else min(pause, left))
        if check and reply.failure is not None:
            raise CallFailed(reply.failure, reply)
        return reply

    def _ask(self, method: str, path: str, **query: Any) -> Steps[dict[str, Any]]:
        given = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None)
        answer, _ = yield from self._persistently(method, f"{path}?{given}" if given else path, {}, None, None)
        value = _json(answer)
        if answer.status >= 400:
            raise CallFailed(_failure(answer.status, value))
        return value

    def _persistently(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None, deadline_ms: int | None
    ) -> Steps[tuple[Answer, int]]:
        """The last answer, and which attempt brought it."""
        ends = None if deadline_ms is None else time.monotonic() + deadline_ms / 1000
        for attempt in itertools.count(1):
            left = None if ends is None else ends - time.monotonic()
            answer = yield self._attempt(method, path, headers, body, left)
            assert answer is not None
            pause = _pause(answer, attempt)
            out_of_time = pause is not None and ends is not None and time.monotonic() + pause >= ends
            if pause is None or attempt >= self._attempts or out_of_time:
                if answer.lost is not None:
                    raise Unreachable(f"{self.url} does not answer: {answer.lost}") from answer.lost
                return answer, attempt
            yield Wait(pause)
        raise AssertionError("counting never ends")

    def _attempt(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None, left: float | None
    ) -> Send:
        token = self._token if isinstance(self._token, str) else self._token()
        content = None
        if body is not None:
            headers = {**headers, "content-type": "application/json"}
            timed = body if left is None else {**body, "deadline_ms": max(1, round(left * 1000))}
            content = orjson.dumps(timed)
        return Send(
            method=method,
            path=path,
            headers={"authorization": f"Bearer {token}", **headers},
            content=content,
            seconds=_UNBOUNDED_WAIT if left is None else max(left, 0) + _GRACE,
        )


def _pause(answer: Answer, attempt: int) -> float | None:
    """How long to wait before trying again; None when that would not help. Full jitter, never before it is asked."""
    least = 0.0
    if answer.lost is None:
        if answer.status < 400:
            return None
        failure = _failure(answer.status, _json(answer))
        if not failure.retryable:
            return None
        least = (failure.retry_after_ms or 0) / 1000
    return least + random.uniform(0, min(_MOST_SECONDS, _BASE_SECONDS * 2**attempt))


def _json(answer: Answer) -> dict[str, Any]:
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Unreachable(f"the answer (HTTP {answer.status}) is not of a Deputize gateway: check the URL")
    return value


def _failure(status: int, problem: Mapping[str, Any]) -> Failure:
    error = problem.get("error")
    if not isinstance(error, dict):
        raise Unreachable(f"the answer (HTTP {status}) is not of a Deputize gateway: check the URL")
    return Failure(
        status=status,
        code=error["code"],
        number=error["number"],
        error_class=error["class"],
        slug=error["slug"],
        message=error["message"],
        advice=error["advice"],
        retryable=error["retryable"],
        retry_after_ms=error["retry_after_ms"],
        details=error["details"],
        trace_id=error["trace_id"],
    )


def _is_failure(answer: Answer, envelope: Mapping[str, Any]) -> bool:
    """A call that was looked for is told with a 200, however it ended."""
    return answer.status >= 400 or envelope.get("is_error") is True


def _status(answer: Answer, envelope: Mapping[str, Any]) -> int:
    return answer.status if answer.status >= 400 else int(envelope.get("status", 500))


def _reply(answer: Answer, attempts: int) -> Reply:
    envelope = _json(answer)
    return Reply(
        result=envelope.get("result"),
        state=envelope.get("state", "failed"),
        call_id=envelope.get("call_id", ""),
        envelope=envelope,
        failure=_failure(_status(answer, envelope), envelope) if _is_failure(answer, envelope) else None,
        replayed=answer.headers.get("idempotency-replayed") == "true",
        joined=answer.headers.get("deputize-joined") == "true",
        attempts=attempts,
    )
