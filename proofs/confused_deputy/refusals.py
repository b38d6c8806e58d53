"""What an answer says of the token it was asked with: the problem in it, at whichever interface, page or form.

A refusal is judged by its problem, not by its status: an answer that complains about anything but the token has let
the token in.
"""

import re
from collections.abc import Iterable

import orjson

from deputize.core.errors import (
    AuthorityRevoked,
    ExchangeRefused,
    GrantEnded,
    HumanTaskNotFound,
    NotAnApprover,
    PermissionDenied,
    Problem,
    SignInFailed,
    TokenAudienceMismatch,
    TokenExpired,
    TokenIssuerUntrusted,
    TokenMalformed,
    TokenMissing,
    TokenSignatureInvalid,
)
from proofs.kit.http_client import HttpResponse

_TOKEN_PROBLEMS: tuple[type[Problem], ...] = (
    TokenMissing,
    TokenExpired,
    TokenSignatureInvalid,
    TokenMalformed,
    TokenAudienceMismatch,
    TokenIssuerUntrusted,
    AuthorityRevoked,
    GrantEnded,
    ExchangeRefused,
    SignInFailed,
)
_REFUSALS = frozenset(kind.spec.slug for kind in _TOKEN_PROBLEMS)
# RFC 6749 and RFC 8693: what the token endpoint says of a token it does not take.
_OAUTH_REFUSALS = frozenset({"invalid_request", "invalid_grant", "invalid_client", "invalid_token", "access_denied"})
# What the HTTP server itself says to bytes that are no request, before anything of ours is asked.
_NOT_HTTP = (400, b"Invalid HTTP request received.")
# A page tells its problem by the number that people would look up.
_NUMBER = re.compile(r"\b(E\d{4}) · trace ")
_ON_PAGES: tuple[type[Problem], ...] = (*_TOKEN_PROBLEMS, NotAnApprover, PermissionDenied, HumanTaskNotFound)
_SLUGS = {kind.spec.e_number: kind.spec.slug for kind in _ON_PAGES}
_SIGN_IN = "/console/sign-in"


def is_refused(answer: HttpResponse) -> bool:
    """Whether the answer says that this token opens nothing here."""
    if (answer.status, answer.body) == _NOT_HTTP:
        return True
    return answer.status in (200, 303, 400, 401, 403) and read_slug(answer) in _REFUSALS | _OAUTH_REFUSALS


def read_slug(answer: HttpResponse) -> str:
    """The problem in an answer of any interface; empty if it holds none."""
    if answer.status == 303:
        # Whoever opens a page and is nobody is sent to where people say who they are.
        return SignInFailed.spec.slug if _SIGN_IN in answer.headers.get("location", "") else ""
    if answer.headers.get("content-type", "").startswith("text/html"):
        number_match = _NUMBER.search(answer.body.decode(errors="replace"))
        return _SLUGS.get(number_match[1], number_match[1]) if number_match else ""
    try:
        payload = answer.json()
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(payload, dict):
        return ""
    result, error = payload.get("result"), payload.get("error")
    # What MCP tells a model of a call, or of several.
    content = result.get("structuredContent", {}) if isinstance(result, dict) else payload
    if isinstance(result, dict) and result.get("isError") is True:
        error = content["error"]
    if isinstance(content.get("results"), list):
        # A batch is refused if each of its calls is.
        errors = [each.get("envelope", each).get("error") for each in content["results"]]
        error = errors[0] if errors and all(errors) else None
    if isinstance(error, str):
        return error
    if isinstance(error, dict) and isinstance(error.get("data"), dict):
        error = error["data"].get("error")
    return str(error.get("slug", "")) if isinstance(error, dict) else ""


def read_rule(answer: HttpResponse) -> str:
    """The rule that a refusal names; without one, its problem."""
    try:
        return str(answer.json()["error"]["details"]["rule"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return read_slug(answer)


def has_tenant_mark(answer: HttpResponse, marks: Iterable[str]) -> bool:
    """Whether an answer that is no problem tells of something that belongs to the tenant."""
    return not read_slug(answer) and any(mark.encode() in answer.body for mark in marks)


def cut_at_mark(answer: HttpResponse, marks: Iterable[str]) -> bytes:
    """Cut out the part of an answer that tells of the tenant, or its beginning if none does."""
    places = [place for mark in marks if (place := answer.body.find(mark.encode())) >= 0]
    begin = max(min(places, default=0) - 200, 0)
    return answer.body[begin : begin + 400]


def is_accepted(answer: HttpResponse, marks: Iterable[str]) -> bool:
    """Whether a good token opened the interface. One of someone who may not decide is let in, and told so: by a
    problem of its own, or on a page above the approval request.
    """
    if answer.status == 403:
        return read_slug(answer) == NotAnApprover.spec.slug or has_tenant_mark(answer, marks)
    return not is_refused(answer) and answer.status != 401 and answer.status < 500
