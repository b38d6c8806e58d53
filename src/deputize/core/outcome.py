"""Define how every call ends: one envelope, rendered once and replayed byte for byte.

An error envelope is an RFC 9457 problem at the same time, so interfaces need no second form.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from deputize.core.content import Content
from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.errors import ErrorSpec, Problem
from deputize.core.json_values import is_large_document
from deputize.core.states import State
from deputize.core.value_types import frozen


@frozen
class Result:
    """A payload with more about it, which a tool may return instead of the bare payload.

    `summary` is for people, `search_text` for transcript search; the model sees `payload`, and `content` beside it.
    `age_seconds` is how old the data was when the tool got it, `confidence` how sure the tool is of it, from 0 to 1.
    `cost` replaces the declared cost of the call; `tokens`, `storage_bytes` and `network_bytes` are what it used, at
    the prices of the contract.
    """

    payload: Any
    summary: str | None = None
    search_text: str | None = None
    cursor: str | None = None
    has_more: bool | None = None
    total_count: int | None = None
    source: str | None = None
    data_version: str | None = None
    cost: float | None = None
    content: Sequence[Content] = ()
    age_seconds: float | None = None
    confidence: float | None = None
    tokens: int | None = None
    storage_bytes: int | None = None
    network_bytes: int | None = None


class Envelope:
    """The terminal result of a call as data, rendered to JSON at most once and parsed at most once.

    A replay is made from the bytes that were stored, so that it is the same byte for byte. So is a result that the
    tool may still hold and change: what was verified and recorded is what every interface sends. An error envelope is
    an RFC 9457 problem at the same time.
    """

    __slots__ = ("_body", "_fields")

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields: dict[str, Any] | None = fields
        self._body: bytes | None = None

    @classmethod
    def from_bytes(cls, body: bytes) -> "Envelope":
        """Take an envelope that was rendered before."""
        envelope = cls.__new__(cls)
        envelope._fields, envelope._body = None, body
        return envelope

    @property
    def body(self) -> bytes:
        """The envelope as JSON."""
        if self._body is None:
            self._body = _render_fields(self.fields)
        return self._body

    @property
    def fields(self) -> dict[str, Any]:
        """The envelope as data."""
        if self._fields is None:
            self._fields = orjson.loads(self.body)
        return self._fields

    async def load_fields(self) -> dict[str, Any]:
        """Return the envelope as data; a large one is parsed in a thread."""
        if self._fields is None and is_large_document(self.body):
            self._fields = await asyncio.to_thread(orjson.loads, self.body)
        return self.fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Envelope) and self.body == other.body

    def __hash__(self) -> int:
        return hash(self.body)

    def __repr__(self) -> str:
        return f"Envelope({self.body.decode(errors='replace')})"


@frozen
class Outcome:
    """The end of a call, ready for any interface."""

    call_id: str
    state: State
    envelope: Envelope
    spec: ErrorSpec | None = None
    retry_after_ms: int | None = None
    is_replay: bool = False
    is_joined: bool = False
    # Queued, or waiting for approval: not at its end yet.
    is_accepted: bool = False
    # The notice of the version that was called, if it is deprecated.
    deprecation: DeprecationNotice | None = None

    @property
    def body(self) -> bytes:
        """The envelope as JSON."""
        return self.envelope.body

    @property
    def http_status(self) -> int:
        if self.is_accepted:
            return 202
        return 200 if self.spec is None else self.spec.http


def build_problem_fields(problem: Problem, *, trace_id: str, instance: str | None = None) -> dict[str, Any]:
    """Build the RFC 9457 members and the `error` object, the same for every interface."""
    spec = problem.spec
    fields: dict[str, Any] = {
        "type": spec.type_uri,
        "title": spec.title,
        "status": spec.http,
        "detail": problem.message,
        "error": {
            "code": spec.code,
            "number": spec.e_number,
            "class": spec.error_class,
            "slug": spec.slug,
            "retryable": spec.retryable,
            "retry_after_ms": problem.retry_after_ms,
            "message": problem.message,
            "advice": problem.advice,
            "details": dict(problem.details),
            "trace_id": trace_id,
        },
    }
    if instance:
        fields["instance"] = instance
    return fields


def build_failure_envelope(
    problem: Problem, *, call_id: str, state: State, trace_id: str, extra_fields: Mapping[str, Any]
) -> Envelope:
    """Build the envelope of a call that was refused or failed."""
    fields = build_problem_fields(problem, trace_id=trace_id, instance=f"/v1/calls/{call_id}")
    fields |= {"call_id": call_id, "state": state, "is_error": True, "trace_id": trace_id, **extra_fields}
    return Envelope(fields)


def render_failure_envelope(
    problem: Problem, *, call_id: str, state: State, trace_id: str, extra_fields: Mapping[str, Any]
) -> bytes:
    """Render the envelope of a call that was refused or failed, for a row that stores it."""
    return build_failure_envelope(
        problem, call_id=call_id, state=state, trace_id=trace_id, extra_fields=extra_fields
    ).body


def _render_fields(fields: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields)
    except TypeError:
        if "error" not in fields:
            raise
        # A tool's own message may hold what JSON cannot; the call ends all the same.
        message, advice = (fields["error"][name].encode(errors="replace").decode() for name in ("message", "advice"))
        error = {**fields["error"], "message": message, "advice": advice, "details": {}}
        return orjson.dumps({**fields, "detail": message, "error": error})
