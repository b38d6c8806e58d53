"""Translate problems and failed outcomes into a gRPC status with structured details.

Details travel as metadata, which clients accept up to 8 KB of by default. So texts are shortened, and details that are
too large are left out; the stored envelope has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import orjson
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from deputize.core.errors import ErrorSpec, Problem
from deputize.core.outcome import Outcome, build_problem_fields
from deputize.interfaces.asgi_http import Header, make_challenge_header
from deputize.interfaces.grpc import deputize_v1_pb2 as messages

DETAILS_KEY: Final = "grpc-status-details-bin"
_DOMAIN: Final = "deputize"
_MAX_MESSAGE_BYTES: Final = 500
_MAX_TEXT_BYTES: Final = 800
_MAX_DETAILS_BYTES: Final = 2_000
_MAX_RULES: Final = 10
_MAX_RULE_BYTES: Final = 100

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedRpc:
    """How an RPC ends that did not succeed: a status, its message, and the trailing metadata."""

    code: grpc.StatusCode
    message: str
    metadata: Metadata


def describe_problem(problem: Problem, trace_id: str, metadata_url: str | None = None) -> FailedRpc:
    """Describe a problem that was raised before a call had an outcome."""
    fields = build_problem_fields(problem, trace_id=trace_id)
    return _build_failure(problem.spec, fields, problem.retry_after_ms, metadata_url)


async def describe_outcome(outcome: Outcome, spec: ErrorSpec, metadata_url: str | None = None) -> FailedRpc:
    """Describe the outcome of a call that was refused or failed."""
    return _build_failure(spec, await outcome.envelope.load_fields(), outcome.retry_after_ms, metadata_url)


def encode_headers(headers: list[Header]) -> Metadata:
    """Encode HTTP headers as metadata."""
    return tuple((name.decode("ascii"), value.decode("ascii", "replace")) for name, value in headers)


def _build_failure(
    spec: ErrorSpec, fields: Mapping[str, Any], retry_after_ms: int | None, metadata_url: str | None
) -> FailedRpc:
    code, message = grpc.StatusCode[spec.grpc], _shorten(str(fields["detail"]), _MAX_MESSAGE_BYTES)
    status = Status(code=code.value[0], message=message)
    facts = {"number": spec.e_number, "slug": spec.slug, "class": spec.error_class}
    _append_detail(status, ErrorInfo(reason=spec.code.value, domain=_DOMAIN, metadata=facts))
    if retry_after_ms is not None:
        retry_info = RetryInfo()
        retry_info.retry_delay.FromMilliseconds(retry_after_ms)
        _append_detail(status, retry_info)
    _append_detail(status, _build_problem_message(spec, fields, retry_after_ms))
    metadata: Metadata = ((DETAILS_KEY, status.SerializeToString()),)
    if spec.http == 401:
        metadata += encode_headers([make_challenge_header(spec, metadata_url)])
    return FailedRpc(code=code, message=message, metadata=metadata)


def _build_problem_message(spec: ErrorSpec, fields: Mapping[str, Any], retry_after_ms: int | None) -> messages.Problem:
    error = fields["error"]
    details = orjson.dumps(error["details"])
    return messages.Problem(
        code=spec.code.value,
        number=spec.e_number,
        slug=spec.slug,
        is_retryable=spec.retryable,
        retry_after_ms=retry_after_ms or 0,
        message=_shorten(error["message"], _MAX_TEXT_BYTES),
        advice=_shorten(error["advice"], _MAX_TEXT_BYTES),
        rules=_list_rules(fields),
        call_id=fields.get("call_id", ""),
        state=fields.get("state", ""),
        trace_id=error["trace_id"],
        details=details if len(details) <= _MAX_DETAILS_BYTES else b"",
    )


def _list_rules(fields: Mapping[str, Any]) -> list[str]:
    """List the ids of the rules that decided: of a refusal, or of a call that was allowed and failed."""
    rules = fields["error"]["details"].get("rules")
    if not isinstance(rules, list):
        rules = fields.get("decision", {}).get("rules", ())
    names = [each.get("id") if isinstance(each, dict) else each for each in rules]
    return [_shorten(each, _MAX_RULE_BYTES) for each in names if isinstance(each, str)][:_MAX_RULES]


def _append_detail(status: Status, detail: Any) -> None:
    wrapper = AnyMessage()
    wrapper.Pack(detail)
    status.details.append(wrapper)


def _shorten(text: str, max_bytes: int) -> str:
    data = text.encode(errors="replace")
    return data.decode() if len(data) <= max_bytes else data[: max_bytes - 3].decode(errors="ignore") + "…"
