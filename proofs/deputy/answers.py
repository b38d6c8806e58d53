"""What an answer says of the token it was asked with: the problem in it, at whichever door, page or form.

A refusal is judged by its problem, not by its status: an answer that complains about anything but the token has let the
token in. Above: `doors`, `pairs`, `deciding`. Below: the product's table of problems.
"""

import re
from collections.abc import Iterable

import orjson

from deputize.core.errors import (
    ExchangeRefused,
    GrantEnded,
    NotAnApprover,
    PermissionDenied,
    Problem,
    Revoked,
    SignInFailed,
    SubjectUnknown,
    TicketNotFound,
    TokenAudience,
    TokenExpired,
    TokenIssuer,
    TokenMalformed,
    TokenMissing,
    TokenSignature,
)
from proofs.kit.wire import Answer

_ABOUT_TOKENS: tuple[type[Problem], ...] = (
    TokenMissing, TokenExpired, TokenSignature, TokenMalformed, TokenAudience, TokenIssuer, Revoked, GrantEnded,
    SubjectUnknown, ExchangeRefused, SignInFailed,
)  # fmt: skip
_REFUSALS = frozenset(kind.face.slug for kind in _ABOUT_TOKENS)
# RFC 6749 and RFC 8693: what the token endpoint says of a token it does not take.
_OAUTH_REFUSALS = frozenset({"invalid_request", "invalid_grant", "invalid_client", "invalid_token", "access_denied"})
# What the HTTP server itself says to bytes that are no request, before anything of ours is asked.
_NOT_HTTP = (400, b"Invalid HTTP request received.")
# A page tells its problem by the number that people would look up.
_NUMBER = re.compile(r"\b(E\d{4}) · trace ")
_ON_PAGES: tuple[type[Problem], ...] = (*_ABOUT_TOKENS, NotAnApprover, PermissionDenied, TicketNotFound)
_SLUGS = {kind.face.e_number: kind.face.slug for kind in _ON_PAGES}
_SIGN_IN = "/console/sign-in"


def is_refused(answer: Answer) -> bool:
    """Whether the answer says that this token opens nothing here."""
    if (answer.status, answer.body) == _NOT_HTTP:
        return True
    return answer.status in (200, 303, 400, 401, 403) and slug_of(answer) in _REFUSALS | _OAUTH_REFUSALS


def slug_of(answer: Answer) -> str:
    """The problem in an answer of any door; empty if it holds none."""
    if answer.status == 303:
        # Whoever opens a page and is nobody is sent to where people say who they are.
        return SignInFailed.face.slug if _SIGN_IN in answer.headers.get("location", "") else ""
    if answer.headers.get("content-type", "").startswith("text/html"):
        told = _NUMBER.search(answer.body.decode(errors="replace"))
        return _SLUGS.get(told[1], told[1]) if told else ""
    try:
        said = answer.json()
    except orjson.JSONDecodeError:
        return ""
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(said, dict) and isinstance(said.get("result"), dict) and said["result"].get("isError") is True:
        # What MCP tells a model of a call that was refused.
        error = said["result"]["structuredContent"]["error"]
    if isinstance(error, str):
        return error
    if isinstance(error, dict) and isinstance(error.get("data"), dict):
        error = error["data"].get("error")
    return str(error.get("slug", "")) if isinstance(error, dict) else ""


def rule_of(answer: Answer) -> str:
    """The rule that a refusal names; without one, its problem."""
    try:
        return str(answer.json()["error"]["details"]["rule"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return slug_of(answer)


def shows(answer: Answer, marks: Iterable[str]) -> bool:
    """Whether an answer that is no problem tells of something that belongs to the tenant."""
    return not slug_of(answer) and any(mark.encode() in answer.body for mark in marks)


def lets_in(answer: Answer, marks: Iterable[str]) -> bool:
    """Whether a good token opened the door. One of somebody who may not decide is let in, and told so: by a problem of
    its own, or on a page above the ticket.
    """
    if answer.status == 403:
        return slug_of(answer) == NotAnApprover.face.slug or shows(answer, marks)
    return not is_refused(answer) and answer.status != 401 and answer.status < 500
