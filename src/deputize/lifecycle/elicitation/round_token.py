"""Issue and open round tokens: a caller gets one with a server's input requests and answers with it.

A round token is encrypted. It holds the questions, the server's own state, and the audience: exactly this caller, tool
and arguments, for an hour. A changed, foreign or expired one is refused, and so is a response that does not match its
question. A round can be answered once: the answering call's key is derived from the asking call, so the same responses
again are the same call, and others are refused.
"""

import base64
import binascii
import hashlib
from dataclasses import replace
from typing import Any, Final, NoReturn

import orjson

from deputize.catalog.schemas import compile_schema, format_pointer, iterate_errors
from deputize.core.caller import Caller
from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.errors import InputResponsesInvalid, RoundTokenRejected, UnsealFailed
from deputize.core.mcp.elicitation import (
    ROUND_TOKEN_PREFIX,
    ClientCapability,
    InputRequest,
    InputRequests,
    InputResponses,
    InputRound,
    find_required_capability,
    is_round_token,
)
from deputize.lifecycle.phases import Validated
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet

LIFETIME_SECONDS: Final = 3600
_SEAL_KIND: Final = "round"
_ACTIONS: Final = ("accept", "decline", "cancel")
_MAX_LENGTH: Final = 262_144


def derive_round_key(call_id: str) -> str:
    """Derive the key of the call that answers another call's input requests; no caller can send such a key."""
    return f"round\0{call_id}"


def issue_round_token(
    keys: KeySet, runtime: Runtime, validated: Validated, call_id: str, input_requests: InputRequests
) -> str:
    """Issue the round token for the caller."""
    payload = {
        "until": runtime.clock.epoch_ms() // 1000 + LIFETIME_SECONDS,
        "for": _build_audience(validated),
        "state": input_requests.request_state,
        "requests": input_requests.requests,
    }
    ciphertext = keys.seal(call_id, _SEAL_KIND, orjson.dumps(payload))
    return f"{ROUND_TOKEN_PREFIX}{call_id}.{base64.urlsafe_b64encode(ciphertext).decode()}"


async def attach_responses(runtime: Runtime, validated: Validated, answers: InputResponses) -> Validated:
    """Attach the responses and the state to continue from to the call, if they match the questions."""
    tenant = validated.call.tenant
    keys = await runtime.keys.get(tenant)
    call_id, payload = open_round_token(keys, answers.round_token)
    if payload["for"] != _build_audience(validated):
        _refuse_token("the round token belongs to another call: the caller, the tool or the arguments differ")
    if payload["until"] < runtime.clock.epoch_ms() // 1000:
        _refuse_token("the round token has expired: make the call again with a new idempotency key")
    responses = validate_responses(payload["requests"], answers.responses)
    return replace(
        validated,
        input_round=InputRound(continued_call_id=call_id, request_state=payload["state"], responses=responses),
    )


def open_round_token(keys: KeySet, text: str) -> tuple[str, dict[str, Any]]:
    call_id, _, base64_text = text.removeprefix(ROUND_TOKEN_PREFIX).partition(".")
    try:
        if not is_round_token(text) or len(text) > _MAX_LENGTH:
            raise ValueError
        ciphertext = base64.b64decode(base64_text, altchars=b"-_", validate=True)
        # Base64 has several spellings of the same bytes; only ours is accepted.
        if base64.urlsafe_b64encode(ciphertext).decode() != base64_text:
            raise ValueError
        payload: dict[str, Any] = orjson.loads(keys.unseal(call_id, _SEAL_KIND, ciphertext))
    except (ValueError, binascii.Error, UnsealFailed):
        _refuse_token("the round token is not from this gateway, or was changed")
    return call_id, payload


def _build_audience(validated: Validated) -> list[str]:
    """Build the audience of a round: the same arguments by the same caller, to the same tool of the same server."""
    caller, contract = validated.call.caller, validated.contract
    arguments = hashlib.sha256(validated.canonical).hexdigest()
    return [*_identify_caller(caller), contract.full_name, contract.handler.target, arguments]


def _identify_caller(caller: Caller) -> list[str]:
    return [caller.tenant, caller.issuer, *caller.subjects]


def validate_responses(questions: dict[str, InputRequest], responses: dict[str, Any]) -> dict[str, Any]:
    """Return the valid responses to the questions.

    Others are left out, as the protocol requires; the server asks again for missing ones.
    """
    valid_responses = {name: responses[name] for name in questions if name in responses}
    errors = [
        {"name": name, "message": fault}
        for name, response in valid_responses.items()
        if (fault := _find_fault(questions[name], response)) is not None
    ]
    if errors:
        raise InputResponsesInvalid(
            f"the response to {errors[0]['name']} is invalid: {errors[0]['message']}", details={"errors": errors}
        )
    try:
        canonicalize(valid_responses)
    except NotCanonical as error:
        raise InputResponsesInvalid(f"the responses have no canonical form: {error}") from error
    return valid_responses


def _find_fault(question: InputRequest, response: Any) -> str | None:
    """Find what is wrong with a response, if anything."""
    if not isinstance(response, dict):
        return "it must be an object"
    match find_required_capability(question):
        case ClientCapability.FORM | ClientCapability.URL:
            return _find_elicitation_fault(question["params"], response)
        case ClientCapability.SAMPLING:
            is_message = response.get("role") in ("user", "assistant") and isinstance(response.get("model"), str)
            blocks = response.get("content")
            return None if is_message and isinstance(blocks, dict | list) else "it must have role, content and model"
        case _:
            roots = response.get("roots")
            is_valid = isinstance(roots, list) and all(
                isinstance(each, dict) and str(each.get("uri", "")).startswith("file://") for each in roots
            )
            return None if is_valid else "roots must be a list of objects with a file:// uri"


def _find_elicitation_fault(params: dict[str, Any], response: dict[str, Any]) -> str | None:
    if response.get("action") not in _ACTIONS:
        return f"action must be one of {', '.join(_ACTIONS)}"
    content = response.get("content")
    if response["action"] != "accept" or params["mode"] == "url":
        return "content is allowed only with an accepted form" if content else None
    if not isinstance(content, dict):
        return "content must be an object with the fields of the form"
    error = next(iter(iterate_errors(compile_schema(params["requestedSchema"]), content)), None)
    return None if error is None else f"content{format_pointer(error.instance_path)} {error.message}"


def _refuse_token(why: str) -> NoReturn:
    raise RoundTokenRejected(why)
