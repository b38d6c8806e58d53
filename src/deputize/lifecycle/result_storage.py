"""Store a result that is too long for its tool, or holds sensitive values, and give a reference in its place.

Stored before the outcome is recorded, so that a reference that a caller gets can be read. If it cannot be stored, the
call still ends as it did: the caller gets the part that fits and is told that there is no more.
"""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from deputize.core.errors import Problem
from deputize.core.results.model_view import build_model_view
from deputize.core.value_types import frozen
from deputize.lifecycle.phases import StoredPayload, Verified
from deputize.lifecycle.recording.redaction import get_redaction_plan, run_for_document
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.stored_results import MAX_BYTES, ResultOwner, StoredReference

# The most and the least time to store a result; between them, what remains until the call's deadline.
_MAX_STORE_SECONDS: Final = 60.0
_MIN_STORE_SECONDS: Final = 5.0
_WRAPPER_BYTES: Final = len(b'{"result":}')
log = structlog.get_logger(__name__)


@frozen
class _LongResult:
    """A result that is not given whole: the form without sensitive values, how many of those there are, and the form
    with them, if there are any.
    """

    visible: Any
    original: Any
    redacted_count: int
    size: int


async def store_payload(runtime: Runtime, verified: Verified, call_id: str) -> Verified:
    """Store the payload if its tool may not give it whole, and replace what models see of it."""
    if verified.problem is not None or verified.input_requests is not None:
        return verified
    long_result = await run_for_document(verified.canonical, lambda: _examine(verified))
    if long_result is None:
        return verified
    reference = await _try_to_store(runtime, verified, call_id, long_result)
    return replace(
        verified,
        stored_payload=await run_for_document(verified.canonical, lambda: _describe(verified, long_result, reference)),
    )


def _examine(verified: Verified) -> _LongResult | None:
    """Tell whether a result has to be stored; None if it is given whole."""
    tool = verified.validated.tool
    plan = get_redaction_plan(tool, "output")
    visible, paths = (verified.payload, ()) if plan.trivial else plan.apply_marks(verified.payload)
    if not paths and count_characters(verified.canonical) <= (tool.contract.max_inline or 0):
        return None
    return _LongResult(
        visible=_join_content(visible, verified),
        original=_join_content(verified.payload, verified) if paths else None,
        redacted_count=len(paths),
        size=len(verified.canonical) - _WRAPPER_BYTES,
    )


def _join_content(payload: Any, verified: Verified) -> Any:
    """Return what is stored: the payload, or a document of it and what the tool returned beside it."""
    return {"payload": payload, "content": list(verified.content)} if verified.content else payload


def count_characters(canonical: bytes) -> int:
    """Count the characters of a payload as JSON, from the canonical bytes of its document."""
    length = len(canonical) if canonical.isascii() else len(canonical.decode())
    return length - _WRAPPER_BYTES


async def _try_to_store(
    runtime: Runtime, verified: Verified, call_id: str, long_result: _LongResult
) -> StoredReference | None:
    validated = verified.validated
    caller, contract = validated.call.caller, validated.contract
    if long_result.size > MAX_BYTES:
        log.warning("result_not_stored", tool=contract.full_name, call=call_id, reason="larger than can be stored")
        return None
    seconds = float(runtime.settings.database.result_hours * 3600)
    if verified.executed.claim is not None:
        # A repeated key gets this outcome again, and cannot have the tool make the result again.
        seconds = max(seconds, float(contract.window_seconds))
    owner = ResultOwner(
        tenant=caller.tenant, call_id=call_id, tool=contract.full_name, user=caller.user, agent_key=caller.agent_key
    )
    try:
        remaining_seconds = validated.deadline.remaining_seconds(runtime.clock.monotonic())
        async with asyncio.timeout(limit_store_seconds(remaining_seconds)):
            return await runtime.stored_results.store_result(
                owner,
                long_result.visible,
                long_result.original if long_result.redacted_count else long_result.visible,
                size=long_result.size,
                seconds=seconds,
            )
    except (Problem, *CONNECTION_ERRORS) as error:
        log.warning("result_not_stored", tool=contract.full_name, call=call_id, reason=type(error).__name__)
        return None


def limit_store_seconds(remaining_seconds: float) -> float:
    """Limit the time to store a result, the wait for its turn included, by what remains until the call's deadline."""
    return min(_MAX_STORE_SECONDS, max(_MIN_STORE_SECONDS, remaining_seconds))


def _describe(verified: Verified, long_result: _LongResult, reference: StoredReference | None) -> StoredPayload:
    contract, result = verified.contract, verified.result
    expires_at = None if reference is None else _format_time(reference.expires_at)
    view = build_model_view(
        long_result.visible,
        summary=None if result is None else result.summary,
        reference=None if reference is None else reference.reference,
        size=long_result.size,
        expires_at=expires_at,
        max_length=contract.max_inline or 0,
    )
    return StoredPayload(
        model_view=view.content,
        persistence={
            "state": "not_stored" if reference is None else "stored",
            "reference": None if reference is None else reference.reference,
            "expires_at": expires_at,
            "bytes": long_result.size,
            "level": view.level,
            "redaction": "redacted" if long_result.redacted_count else "none",
            "redacted_values": long_result.redacted_count,
        },
    )


def _format_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
