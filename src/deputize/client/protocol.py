"""Define the client's side of the API: requests, replies and retries, as generators without input and output.

The generators yield steps, receive responses, and return results, so the two clients cannot differ.
"""

import hmac
import itertools
import os
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import orjson

from deputize.core.canonical import canonicalize

_BASE_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 10.0
_DEFAULT_TIMEOUT_SECONDS = 330.0
_GRACE_SECONDS = 5.0
# What model APIs take in one request.
_MAX_EXPORTS = 128
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error of the gateway: branch on `code`, show `message` and `advice` to people."""

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
    """The outcome of a call. `envelope` is the whole response; `failure` is None if the call succeeded.

    `is_replay` is True if this is the stored outcome of the same key, `is_joined` if the same call was already running.
    """

    result: Any
    state: str
    call_id: str
    envelope: Mapping[str, Any]
    failure: Failure | None = None
    is_replay: bool = False
    is_joined: bool = False
    attempts: int = 1

    @property
    def ok(self) -> bool:
        """True if the call succeeded."""
        return self.failure is None

    @property
    def preview(self) -> Mapping[str, Any] | None:
        """What the call would do, for a dry run; None for any other call."""
        preview: Mapping[str, Any] | None = self.envelope.get("preview")
        return preview

    @property
    def approval(self) -> Mapping[str, Any] | None:
        """Who must approve the call, and by when; None if no approval is needed."""
        approval: Mapping[str, Any] | None = self.envelope.get("approval")
        return approval

    @property
    def pending(self) -> bool:
        """True if the call was accepted and has not ended yet: use `wait`."""
        return "poll_after_ms" in self.envelope


class DeputizeError(Exception):
    """The base of all errors of the client."""


class Unreachable(DeputizeError):
    """The gateway did not answer. Repeat the call with the same key to learn its outcome."""


class CallFailed(DeputizeError):
    """The gateway refused the call, or the tool failed: see `failure`. `reply` has the envelope of a call."""

    def __init__(self, failure: Failure, reply: Reply | None = None) -> None:
        super().__init__(f"{failure.message} ({failure.number} {failure.slug}). {failure.advice}")
        self.failure = failure
        self.reply = reply


@dataclass(frozen=True, kw_only=True, slots=True)
class SendStep:
    """A request to send."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None
    seconds: float


@dataclass(frozen=True, slots=True)
class WaitStep:
    """A pause before the next step."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResponse:
    """A response, or the transport error if none came."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    transport_error: Exception | None = None


Steps: TypeAlias = Generator[SendStep | WaitStep, StepResponse | None, T]


class ClientProtocol:
    """The requests of one session, as steps."""

    def __init__(
        self, url: str, token: str | Callable[[], str], session: str | None, secret: bytes | None, attempts: int
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.session = session or str(uuid.uuid4())
        self._token = token
        self._secret = secret or os.urandom(32)
        self._attempts = attempts
        self._steps = itertools.count(1)

    def derive_key(self, tool: str, arguments: Mapping[str, Any], step: str) -> str:
        """Derive the idempotency key: HMAC-SHA256 over session, tool, step and canonical arguments."""
        message = "\0".join((self.session, tool, step)).encode() + b"\0" + canonicalize(dict(arguments))
        return hmac.digest(self._secret, message, "sha256").hex()

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
        """Call a tool."""
        all_arguments = {**(arguments or {}), **more}
        body: dict[str, Any] = {"tool": tool, "arguments": all_arguments, "session": self.session}
        body |= {name: value for name, value in (options or {}).items() if value is not None}
        if version is not None:
            body["version"] = version
        if step is not None:
            body["step"] = step
        headers: dict[str, str] = {}
        if dry_run:
            # A dry run is no step, so that later calls have the same keys with and without it.
            body["dry_run"] = True
        else:
            headers["idempotency-key"] = key or self.derive_key(tool, all_arguments, step or f"#{next(self._steps)}")
        if traceparent is not None:
            headers["traceparent"] = traceparent
        answer, attempts = yield from self._send_with_retries("POST", "/v1/calls", headers, body, deadline_ms)
        reply = _build_reply(answer, attempts)
        if check and reply.failure is not None:
            raise CallFailed(reply.failure, reply)
        return reply

    def call_many(self, calls: Sequence[Mapping[str, Any]], on_failure: str) -> Steps[list[Reply]]:
        """Call several tools in one request."""
        body = {"calls": [self._complete_call(each) for each in calls], "on_failure": on_failure}
        answer, attempts = yield from self._send_with_retries("POST", "/v1/calls/batch", {}, body, None)
        value = _parse_json(answer)
        if answer.status >= 400:
            raise CallFailed(_parse_failure(answer.status, value))
        return [
            _make_reply(
                each["envelope"],
                each["status"],
                is_replay=each["is_replay"],
                is_joined=each["is_joined"],
                attempts=attempts,
            )
            for each in value["results"]
        ]

    def _complete_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Add the session, and a key where there is none; a dry run is no step."""
        fields = {"arguments": {}, "session": self.session, **call}
        if not fields.get("dry_run") and fields.get("idempotency_key") is None:
            step = fields.get("step") or f"#{next(self._steps)}"
            fields["idempotency_key"] = self.derive_key(fields["tool"], fields["arguments"], step)
        return fields

    def tools(self, after: str | None, limit: int | None) -> Steps[dict[str, Any]]:
        """List a page of tools."""
        return self._request_json("GET", "/v1/tools", after=after, limit=limit)

    def search(self, query: str, limit: int | None) -> Steps[dict[str, Any]]:
        """Search tools."""
        return self._request_json("GET", "/v1/tools/search", q=query, limit=limit)

    def tool(self, name: str, version: str | None) -> Steps[dict[str, Any]]:
        """Show one tool."""
        return self._request_json("GET", f"/v1/tools/{quote(name, safe='')}", version=version)

    def export_tools(self, names: Sequence[str] | None, form: str) -> Steps[list[dict[str, Any]]]:
        """Export these tools, or all that can be called, as definitions of a model API."""
        if names is None:
            names, after = [], None
            while True:
                page = yield from self.tools(after, None)
                names += [each["name"] for each in page["tools"]]
                after = page["next_after"]
                if after is None or len(names) > _MAX_EXPORTS:
                    break
        if len(names) > _MAX_EXPORTS:
            raise DeputizeError(
                f"model APIs take at most {_MAX_EXPORTS} tools: name those that this conversation needs"
            )
        definitions = []
        for name in names:
            path = f"/v1/tools/{quote(name, safe='')}/export"
            definitions.append((yield from self._request_json("GET", path, format=form))["definition"])
        return definitions

    def calls(self, before: str | None, limit: int | None) -> Steps[dict[str, Any]]:
        """List a page of calls."""
        return self._request_json("GET", "/v1/calls", before=before, limit=limit)

    def show(self, call_id: str) -> Steps[dict[str, Any]]:
        """Show one call."""
        return self._request_json("GET", f"/v1/calls/{quote(call_id, safe='')}")

    def cancel(self, call_id: str) -> Steps[dict[str, Any]]:
        """Request that a call is canceled."""
        return self._request_json("POST", f"/v1/calls/{quote(call_id, safe='')}/cancel")

    def retry(self, call_id: str) -> Steps[Reply]:
        """Retry a failed call."""
        path = f"/v1/calls/{quote(call_id, safe='')}/retry"
        answer, attempts = yield from self._send_with_retries("POST", path, {}, None, None)
        reply = _build_reply(answer, attempts)
        if reply.failure is not None:
            raise CallFailed(reply.failure, reply)
        return reply

    def wait(self, call_id: str, *, seconds: float | None, check: bool) -> Steps[Reply]:
        """Poll as often as the gateway advises, until the call has ended or the time is over."""
        path, ends_at = f"/v1/calls/{quote(call_id, safe='')}", None if seconds is None else time.monotonic() + seconds
        while True:
            answer, attempts = yield from self._send_with_retries("GET", path, {}, None, None)
            reply = _build_reply(answer, attempts)
            seconds_left = None if ends_at is None else ends_at - time.monotonic()
            if not reply.pending or (seconds_left is not None and seconds_left <= 0):
                break
            pause = reply.envelope["poll_after_ms"] / 1000
            yield WaitStep(pause if seconds_left is None else min(pause, seconds_left))
        if check and reply.failure is not None:
            raise CallFailed(reply.failure, reply)
        return reply

    def _request_json(self, method: str, path: str, **query: Any) -> Steps[dict[str, Any]]:
        query_string = "&".join(
            f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value is not None
        )
        answer, _ = yield from self._send_with_retries(
            method, f"{path}?{query_string}" if query_string else path, {}, None, None
        )
        value = _parse_json(answer)
        if answer.status >= 400:
            raise CallFailed(_parse_failure(answer.status, value))
        return value

    def _send_with_retries(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None, deadline_ms: int | None
    ) -> Steps[tuple[StepResponse, int]]:
        """Send a request with retries; return the last response and the number of attempts."""
        ends_at = None if deadline_ms is None else time.monotonic() + deadline_ms / 1000
        for attempt in itertools.count(1):
            seconds_left = None if ends_at is None else ends_at - time.monotonic()
            answer = yield self._build_attempt(method, path, headers, body, seconds_left)
            assert answer is not None
            pause = _compute_pause(answer, attempt)
            out_of_time = pause is not None and ends_at is not None and time.monotonic() + pause >= ends_at
            if pause is None or attempt >= self._attempts or out_of_time:
                if answer.transport_error is not None:
                    raise Unreachable(
                        f"{self.url} does not answer: {answer.transport_error}. Check that the gateway runs there."
                    ) from answer.transport_error
                return answer, attempt
            yield WaitStep(pause)
        raise AssertionError("unreachable: the loop has no end")

    def _build_attempt(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None, seconds_left: float | None
    ) -> SendStep:
        token = self._token if isinstance(self._token, str) else self._token()
        content = None
        if body is not None:
            headers = {**headers, "content-type": "application/json"}
            payload = body if seconds_left is None else {**body, "deadline_ms": max(1, round(seconds_left * 1000))}
            content = orjson.dumps(payload)
        return SendStep(
            method=method,
            path=path,
            headers={"authorization": f"Bearer {token}", **headers},
            content=content,
            seconds=_DEFAULT_TIMEOUT_SECONDS if seconds_left is None else max(seconds_left, 0) + _GRACE_SECONDS,
        )


def _compute_pause(answer: StepResponse, attempt: int) -> float | None:
    """Compute the pause before a retry, with full jitter on top of `retry_after_ms`; None if a retry cannot help."""
    minimum = 0.0
    if answer.transport_error is None:
        if answer.status < 400:
            return None
        failure = _parse_failure(answer.status, _parse_json(answer))
        if not failure.retryable:
            return None
        minimum = (failure.retry_after_ms or 0) / 1000
    return minimum + random.uniform(0, min(_MAX_BACKOFF_SECONDS, _BASE_SECONDS * 2**attempt))


def _parse_json(answer: StepResponse) -> dict[str, Any]:
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Unreachable(f"the answer (HTTP {answer.status}) does not come from a Deputize gateway: check the URL")
    return value


def _parse_failure(status: int, problem: Mapping[str, Any]) -> Failure:
    error = problem.get("error")
    if not isinstance(error, dict):
        raise Unreachable(f"the answer (HTTP {status}) does not come from a Deputize gateway: check the URL")
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


def _build_reply(answer: StepResponse, attempts: int) -> Reply:
    return _make_reply(
        _parse_json(answer),
        answer.status,
        is_replay=answer.headers.get("idempotency-replayed") == "true",
        is_joined=answer.headers.get("deputize-joined") == "true",
        attempts=attempts,
    )


def _make_reply(envelope: Mapping[str, Any], status: int, *, is_replay: bool, is_joined: bool, attempts: int) -> Reply:
    # A call that is read by its id comes with status 200, however it ended.
    is_failure = status >= 400 or envelope.get("is_error") is True
    failure_status = status if status >= 400 else int(envelope.get("status", 500))
    return Reply(
        result=envelope.get("result"),
        state=envelope.get("state", "failed"),
        call_id=envelope.get("call_id", ""),
        envelope=envelope,
        failure=_parse_failure(failure_status, envelope) if is_failure else None,
        is_replay=is_replay,
        is_joined=is_joined,
        attempts=attempts,
    )
