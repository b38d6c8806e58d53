"""How every call ends: one envelope, rendered once, replayed byte for byte.

An error envelope is at the same time an RFC 9457 problem, so that no door has to invent a second form.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from deputize.core.errors import Face, Problem
from deputize.core.events import State
from deputize.core.frozen import frozen


@frozen
class Result:
    """What a tool may return instead of a bare payload, to say more about it.

    `summary` is for people, `search_text` for transcript search; the model sees `payload`.
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


@frozen
class Outcome:
    """The end of a call, ready for any door. `body` is the envelope; a replay carries the first one's bytes."""

    call_id: str
    state: State
    body: bytes
    face: Face | None = None
    retry_after_ms: int | None = None
    replayed: bool = False
    joined: bool = False
    # Taken on, and not at its end yet.
    accepted: bool = False

    @property
    def http_status(self) -> int:
        if self.accepted:
            return 202
        return 200 if self.face is None else self.face.http


def problem_fields(problem: Problem, *, trace_id: str, instance: str | None = None) -> dict[str, Any]:
    """The RFC 9457 members and our `error` object, the same through every door."""
    face = problem.face
    fields: dict[str, Any] = {
        "type": face.type_uri,
        "title": face.title,
        "status": face.http,
        "detail": problem.message,
        "error": {
            "code": face.code,
            "number": face.e_number,
            "class": face.error_class,
            "slug": face.slug,
            "retryable": face.retryable,
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


def failure_body(problem: Problem, *, call_id: str, state: State, trace_id: str, more: Mapping[str, Any]) -> bytes:
    fields = problem_fields(problem, trace_id=trace_id, instance=f"/v1/calls/{call_id}")
    fields |= {"call_id": call_id, "state": state, "is_error": True, "trace_id": trace_id, **more}
    try:
        return orjson.dumps(fields)
    except TypeError:
        # A tool's own words may hold what JSON cannot; the call ends all the same.
        said = problem.message.encode(errors="replace").decode()
        advised = problem.advice.encode(errors="replace").decode()
        error = {**fields["error"], "message": said, "advice": advised, "details": {}}
        return orjson.dumps({**fields, "detail": said, "error": error})
