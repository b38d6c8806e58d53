"""A call's envelope as the result of `tools/call`. Whatever a model must know stands in `content` and in
`structuredContent` both, for some clients show it only one of them.

A result of a tool of an MCP server goes out as the server sent it: its envelope here was made to lose nothing. Names
under `dev.deputize/` in `_meta` tell the rest: they are no secrets, since clients may hand them on to the model.

Above: `calling.py`, `waiting.py`, `tasks.py`. Below: `faces.py`, `shown.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from deputize.catalog.snapshot import ToolVersion
from deputize.core.contract import LifecycleState
from deputize.core.errors import OutcomeUnknown, by_slug
from deputize.core.events import TERMINAL, State
from deputize.core.mcp import META_PREFIX
from deputize.core.outcome import failure_body
from deputize.doors.mcp.faces import advice_of, error_in, is_protocol_error
from deputize.doors.mcp.shown import is_tool_of_server

CALL: Final = META_PREFIX + "call"
RECEIPT: Final = META_PREFIX + "receipt"
COST: Final = META_PREFIX + "cost"
DEPRECATION: Final = META_PREFIX + "deprecation"
REDACTION: Final = META_PREFIX + "redaction"
REPLAYED: Final = META_PREFIX + "replayed"
WARNINGS: Final = META_PREFIX + "warnings"
_WITHHELD: Final = "result_redacted"
_ASK_AGAIN_MS = 5000

Envelope = Mapping[str, Any]
Block = dict[str, Any]


def result_of(envelope: Envelope, found: ToolVersion | None, base: str, *, replayed: bool = False) -> dict[str, Any]:
    """What became of a call. Raises where that is an error of the protocol. `base` is the gateway's own address."""
    if envelope.get("is_error"):
        return _failed(envelope, found, base, replayed=replayed)
    content, structured = told(envelope.get("result"), found)
    result: dict[str, Any] = {"content": content, "isError": False, "_meta": meta_of(envelope, found, base, replayed)}
    if structured is not None:
        result["structuredContent"] = structured
    return result


def whole(envelope: dict[str, Any]) -> Envelope:
    """A call that ended without its process has no envelope of its own: it is told as whoever repeats it would hear."""
    slug, state = envelope.get("error_slug"), State(envelope["state"])
    if "is_error" in envelope or state not in TERMINAL or state is State.SUCCEEDED or "error_slug" not in envelope:
        return envelope
    problem = (by_slug(slug) if slug else OutcomeUnknown)(
        "the process that ran this call ended before its outcome was recorded"
    )
    told = failure_body(
        problem, call_id=envelope["call_id"], state=state, trace_id=envelope.get("trace_id") or "", more={}
    )
    made: Envelope = orjson.loads(told)
    return made


def told(payload: Any, found: ToolVersion | None) -> tuple[list[Block], Any]:
    """A payload as content and as structured content."""
    if found is not None and is_tool_of_server(found.contract) and isinstance(payload, dict):
        return payload.get("content", []), payload.get("structured")
    structured = payload if isinstance(payload, dict) else {"result": payload}
    return [text(payload if isinstance(payload, str) else orjson.dumps(payload).decode())], structured


def text(said: str) -> Block:
    return {"type": "text", "text": said}


def _failed(envelope: Envelope, found: ToolVersion | None, base: str, *, replayed: bool) -> dict[str, Any]:
    error = envelope["error"]
    face = by_slug(error["slug"]).face
    if is_protocol_error(face):
        raise error_in(envelope, face)
    structured = failure(envelope)
    blocks = error["details"].get("content") if found is not None and is_tool_of_server(found.contract) else None
    content = blocks if _are_blocks(blocks) else [text(_spelled(structured["error"], envelope))]
    return {
        "content": content,
        "structuredContent": structured,
        "isError": True,
        "_meta": meta_of(envelope, found, base, replayed),
    }


def failure(envelope: Envelope) -> dict[str, Any]:
    """A failed call for a model: what went wrong, whether to try again, and what to do next."""
    error = envelope["error"]
    kept = {name: error[name] for name in ("code", "slug", "message", "retryable", "retry_after_ms")}
    details = {name: value for name, value in error["details"].items() if name != "content"}
    advice = advice_of(error["slug"], error["advice"])
    return {
        "status": envelope["state"],
        "call_id": envelope["call_id"],
        "error": {**kept, "advice": advice, "details": details},
    }


def _spelled(error: Mapping[str, Any], envelope: Envelope) -> str:
    lines = [f"{error['code']}: {error['message']}", str(error["advice"])]
    if error["retry_after_ms"] is not None:
        lines.append(f"Not before {error['retry_after_ms']} ms from now.")
    if error["details"]:
        lines.append("Details: " + orjson.dumps(error["details"]).decode())
    return "\n".join([*lines, f"(call {envelope['call_id']}, {envelope['state']})"])


def _are_blocks(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "type" in each for each in value)


def meta_of(envelope: Envelope, found: ToolVersion | None, base: str, replayed: bool = False) -> dict[str, Any]:
    call_id = envelope["call_id"]
    meta: dict[str, Any] = {
        CALL: {"id": call_id, "state": envelope["state"], "trace_id": envelope.get("trace_id")},
        RECEIPT: {"id": call_id, "url": f"{base}/v1/calls/{call_id}"},
    }
    cost = (envelope.get("execution") or {}).get("cost")
    if cost is not None:
        meta[COST] = cost
    if replayed:
        meta[REPLAYED] = True
    if envelope.get("warnings"):
        meta[WARNINGS] = envelope["warnings"]
    if (envelope.get("error") or {}).get("class") == _WITHHELD:
        meta[REDACTION] = {"applied": True}
    if found is not None and found.state is LifecycleState.DEPRECATED:
        life = found.contract.life
        meta[DEPRECATION] = {"sunset": life.sunset_date, "replacement": life.replacement}
    return meta


def pending(envelope: Envelope, base: str) -> dict[str, Any]:
    """A call that is not at its end: never an error, and everything there is to know in both places."""
    facts = waits(envelope)
    meta = meta_of(envelope, None, base)
    return {"content": [text(facts["message"])], "structuredContent": facts, "isError": False, "_meta": meta}


def waits(envelope: Envelope) -> dict[str, Any]:
    """What a call that is not at its end waits for, and how to hear of it."""
    call_id, state = envelope["call_id"], envelope["state"]
    approval = envelope.get("approval") or {}
    url = approval.get("url")
    if state == "awaiting_approval":
        wait = _ASK_AGAIN_MS
        groups = ", ".join(approval.get("groups", ()))
        why = f"Nothing was done yet: a person has to approve this call{f' ({groups})' if groups else ''}."
        if url:
            why += f" They decide at {url}"
    else:
        wait = envelope.get("poll_after_ms") or _ASK_AGAIN_MS
        why = "The call was taken on and is not at its end yet."
    how = f'Ask what became of it with calls_get {{"call_id": "{call_id}"}}; do not make the call again.'
    progress = envelope.get("progress")
    return {
        "status": state,
        "call_id": call_id,
        "approval_url": url,
        "retry_after_ms": wait,
        "message": f"{why}\n{how}",
        **({"progress": progress} if progress else {}),
    }
