"""Interpret the answer of an HTTP service: a result, or the Problem that its status means."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final

import orjson

from deputize.core.contract.contract import MutationClass
from deputize.core.contract.http_request import CREDENTIAL_HEADERS
from deputize.core.contract.response_fields import build_field_tree, project_value
from deputize.core.contract.tools import HttpTool
from deputize.core.errors import (
    CredentialExpired,
    CredentialMissing,
    OutcomeUnknown,
    Problem,
    ResultInvalid,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.text import redact_error_text, redact_texts
from deputize.execute.egress import HttpAnswer
from deputize.execute.upstreams.faults import UnreadableAnswer
from deputize.execute.upstreams.oauth.www_authenticate import Challenge, parse_challenge

_MAX_MESSAGE_LENGTH: Final = 300
_MAX_SEARCHED_LENGTH: Final = 4_000
_MAX_HEADER_LENGTH: Final = 2_000
_LARGEST_DETAILS: Final = 16_384
_MAX_PAUSE_SECONDS: Final = 3_600
_MESSAGE_FIELDS: Final = ("message", "msg", "detail", "error_description", "title", "error", "errors")
_TEXT_TYPES: Final = frozenset(
    {"application/xml", "application/yaml", "application/x-yaml", "application/javascript", "application/x-ndjson",
     "application/x-www-form-urlencoded"}
)  # fmt: skip


# What a refusal means, where its status says more than that the request failed.
_REFUSALS: Final[Mapping[int, type[Problem]]] = {
    404: ToolPrecondition,
    409: ToolConflict,
    410: ToolPrecondition,
    412: ToolPrecondition,
    422: SemanticViolation,
}


class ServiceStatus(Exception):
    """The HTTP status behind a problem, for the retry policy."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


def build_result(
    tool: HttpTool, answer: HttpAnswer, arguments: Mapping[str, Any], now: datetime, *, had_credential: bool
) -> dict[str, Any]:
    """Build the result of an answer that means success, or raise the Problem that it means."""
    if not 200 <= answer.status < 300:
        problem = _build_problem(tool, answer, KnownPaths(arguments), now, had_credential=had_credential)
        raise problem from ServiceStatus(answer.status)
    result: dict[str, Any] = {"status": answer.status, **_read_body(tool, answer)}
    # Contracts that were registered by an earlier release may name headers with credentials.
    names = [name.lower() for name in tool.request.response_headers or () if name.lower() not in CREDENTIAL_HEADERS]
    headers = {name: answer.headers[name][:_MAX_HEADER_LENGTH] for name in names if name in answer.headers}
    return {**result, "headers": headers} if headers else result


def keep_response_fields(tool: HttpTool, result: dict[str, Any]) -> dict[str, Any]:
    """Keep only the fields of the body that the contract names, or raise `ResultInvalid` if there can be none."""
    if tool.request.response_fields is None or not result.keys() & {"body", "text", "base64"}:
        return result
    try:
        if "body" not in result:
            raise ValueError("it is not JSON")
        return {**result, "body": project_value(result["body"], build_field_tree(tool.request.response_fields))}
    except ValueError as error:
        raise ResultInvalid(
            f"the fields of the response that {tool.contract.full_name} keeps cannot be found: {error}"
        ) from error


def _read_body(tool: HttpTool, answer: HttpAnswer) -> dict[str, Any]:
    if not answer.body:
        return {}
    media_type = _read_media_type(answer.headers)
    if _is_json(media_type):
        try:
            return {"body": orjson.loads(answer.body)}
        except orjson.JSONDecodeError as error:
            raise UnreadableAnswer(f"the service {tool.service} answered with JSON that is not valid") from error
    if media_type.startswith("text/") or media_type.endswith("+xml") or media_type in _TEXT_TYPES:
        return {"text": answer.body.decode(errors="replace"), "media_type": media_type}
    return {"base64": base64.b64encode(answer.body).decode(), "media_type": media_type or "application/octet-stream"}


def _build_problem(
    tool: HttpTool, answer: HttpAnswer, known_paths: KnownPaths, now: datetime, *, had_credential: bool
) -> Problem:
    """Build the problem that a status means. The service's own words are redacted."""
    status, service = answer.status, tool.service
    pause = _read_pause(answer.headers, now)
    is_scope_missing = had_credential and status == 403 and _read_challenge(answer).is_scope_insufficient
    if status == 401 or is_scope_missing:
        return _build_credential_problem(tool, answer, had_credential=had_credential)
    if status == 429:
        return UpstreamRateLimited(f"the service {service} limits the rate of calls (HTTP 429)", retry_after_ms=pause)
    if status in (408, 504):
        return UpstreamTimeout(f"the service {service} timed out (HTTP {status})", retry_after_ms=pause)
    if status >= 500:
        return UpstreamUnavailable(f"the service {service} failed (HTTP {status})", retry_after_ms=pause)
    if status < 400:
        message = f"the service {service} answered with a redirect (HTTP {status}), which is not followed"
        if tool.contract.mutation_class is not MutationClass.READ:
            # Many services act and then redirect to the result.
            return OutcomeUnknown(f"{message}; it is unknown whether the service acted", details={"status": status})
        return ToolFailed(
            message,
            advice="Ask the operator to set the service's url to the address that it redirects to.",
            details={"status": status},
        )
    message, details, is_redacted = _read_error(answer, known_paths)
    problem = _REFUSALS.get(status, ToolFailed)(
        f"the service {service} refused the request (HTTP {status}){': ' if message else ''}{message}",
        details={"status": status, **details},
        nothing_happened=tool.contract.mutation_class is MutationClass.READ,
    )
    return problem.replace(is_redacted=is_redacted, known_paths=known_paths)


def _build_credential_problem(tool: HttpTool, answer: HttpAnswer, *, had_credential: bool) -> Problem:
    challenge = answer.headers.get("www-authenticate", "")[:_MAX_HEADER_LENGTH]
    if had_credential:
        return CredentialExpired(
            f"the service {tool.service} rejected the credential (HTTP {answer.status})",
            nothing_happened=True, challenge=challenge, is_unknown=answer.status == 401,
        )  # fmt: skip
    return CredentialMissing(
        f"the service {tool.service} requires a credential (HTTP 401)",
        advice="Ask the operator to set credential and security for this service under [[services]].",
        nothing_happened=True,
        challenge=challenge,
        is_unknown=True,
    )


def _read_challenge(answer: HttpAnswer) -> Challenge:
    return parse_challenge(answer.headers.get("www-authenticate", "")[:_MAX_HEADER_LENGTH])


def _read_error(answer: HttpAnswer, known_paths: KnownPaths) -> tuple[str, dict[str, Any], bool]:
    """Read the service's message, and its error document unless it is too large; tell whether something is hidden."""
    media_type = _read_media_type(answer.headers)
    if not _is_json(media_type):
        is_text = media_type == "text/plain"
        text = answer.body[:_MAX_SEARCHED_LENGTH].decode(errors="replace") if is_text else ""
        message, is_redacted = _shorten(text, known_paths)
        return message, {}, is_redacted
    try:
        document = orjson.loads(answer.body)
        is_small = len(orjson.dumps([[document]])) <= _LARGEST_DETAILS
    except (orjson.JSONDecodeError, TypeError):
        return "", {}, False
    message, is_redacted = _shorten(_find_message(document), known_paths)
    if not is_small:
        return message, {}, is_redacted
    visible_document = redact_texts(document, partial(redact_error_text, known_paths=known_paths))
    return message, {"body": visible_document}, is_redacted or visible_document != document


def _find_message(document: Any, depth: int = 0) -> str:
    """Find the sentence in an error document, in the fields that services use."""
    if isinstance(document, str):
        return document
    if isinstance(document, list):
        return _find_message(document[0], depth + 1) if document and depth < 3 else ""
    if not isinstance(document, dict) or depth >= 3:
        return ""
    texts = (_find_message(document.get(name), depth + 1) for name in _MESSAGE_FIELDS)
    return next((text for text in texts if text.strip()), "")


def _shorten(text: str, known_paths: KnownPaths) -> tuple[str, bool]:
    """Redact and shorten a text, and tell whether something was hidden in it."""
    searched_text = text.strip()[:_MAX_SEARCHED_LENGTH]
    # Redacted before it is cut: what remains of a secret may not look like one.
    visible_text = redact_error_text(searched_text, known_paths)
    return visible_text[:_MAX_MESSAGE_LENGTH], visible_text != searched_text


def _read_media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _read_pause(headers: Mapping[str, str], now: datetime) -> int | None:
    """Read Retry-After: seconds, or a date."""
    text = headers.get("retry-after", "")[:64].strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:6]), _MAX_PAUSE_SECONDS) * 1000
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(min(max((moment - now).total_seconds(), 0), _MAX_PAUSE_SECONDS) * 1000)
