"""Rounds: what a caller is given with a server's questions, and what an answer is read from.

A round is a sealed text. It holds what was asked, the server's own state, and for whom: exactly this caller, tool and
arguments, for an hour. Changed, borrowed or old, it is refused, and so is an answer that does not fit its question.
It can be answered once: the key of the call that answers is made from the call that asked, so the same answers again
are that call again, and others are refused. Above: `run.py` and `settle.py`. Below: `store/keys.py`.
"""

import base64
import binascii
import hashlib
from dataclasses import replace
from typing import Any, Final, NoReturn, TypeGuard

import orjson

from deputize.catalog.schemas import compile_schema, pointer
from deputize.core.caller import Caller
from deputize.core.canonical import NotCanonical, canonical
from deputize.core.errors import AnswersInvalid, RoundRefused, SealBroken
from deputize.core.questions import Ability, Answers, Asks, Question, Round, ability_of
from deputize.lifecycle.phases import Validated
from deputize.lifecycle.rooms import Rooms
from deputize.store.keys import KeySet

SECONDS: Final = 3600
_PREFIX: Final = "round1."
_KIND: Final = "round"
_ACTIONS: Final = ("accept", "decline", "cancel")
_LONGEST: Final = 262_144


def is_round(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and text.startswith(_PREFIX)


def round_key(call_id: str) -> str:
    """The key that whoever answers a call's questions goes by; no caller can send such a one."""
    return f"round\0{call_id}"


def given_out(keys: KeySet, rooms: Rooms, validated: Validated, call_id: str, asks: Asks) -> str:
    """The round as text, for whoever is asked."""
    held = {
        "until": rooms.clock.epoch_ms() // 1000 + SECONDS,
        "for": _for(validated),
        "state": asks.state,
        "questions": asks.questions,
    }
    box = keys.seal(call_id, _KIND, orjson.dumps(held))
    return f"{_PREFIX}{call_id}.{base64.urlsafe_b64encode(box).decode()}"


async def answered(rooms: Rooms, validated: Validated, answers: Answers) -> Validated:
    """The call with what it goes on from, once its answers fit what was asked."""
    tenant = validated.received.caller.tenant
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    call_id, held = opened(keys, answers.round)
    if held["for"] != _for(validated):
        _refuse("these answers were asked for by another call: another caller, tool or arguments")
    if held["until"] < rooms.clock.epoch_ms() // 1000:
        _refuse("what these answers belong to has expired: make the call anew, under a new key")
    responses = fitting(held["questions"], answers.responses)
    return replace(validated, round=Round(continues=call_id, state=held["state"], responses=responses))


def opened(keys: KeySet, text: str) -> tuple[str, dict[str, Any]]:
    call_id, _, boxed = text.removeprefix(_PREFIX).partition(".")
    try:
        if not is_round(text) or len(text) > _LONGEST:
            raise ValueError
        box = base64.b64decode(boxed, altchars=b"-_", validate=True)
        # Other letters may stand for the same bytes; they were not given out.
        if base64.urlsafe_b64encode(box).decode() != boxed:
            raise ValueError
        held: dict[str, Any] = orjson.loads(keys.open(call_id, _KIND, box))
    except (ValueError, binascii.Error, SealBroken):
        _refuse("the round was not given out here, or was changed since")
    return call_id, held


def _for(validated: Validated) -> list[str]:
    """Whom a round is for, and what for: the same words by the same caller, to the same tool of the same server."""
    caller, contract = validated.received.caller, validated.tool.contract
    arguments = hashlib.sha256(validated.canonical).hexdigest()
    return [*_who(caller), contract.full_name, contract.handler.target, arguments]


def _who(caller: Caller) -> list[str]:
    return [caller.tenant, caller.issuer, *caller.subjects]


def fitting(questions: dict[str, Question], responses: dict[str, Any]) -> dict[str, Any]:
    """The answers to what was asked. Others are left out, as the protocol wants it; one that is missing the server asks
    for again.
    """
    kept = {name: responses[name] for name in questions if name in responses}
    errors = [
        {"name": name, "message": fault}
        for name, response in kept.items()
        if (fault := _fault(questions[name], response)) is not None
    ]
    if errors:
        raise AnswersInvalid(
            f"the answer to {errors[0]['name']} does not fit: {errors[0]['message']}", details={"errors": errors}
        )
    try:
        canonical(kept)
    except NotCanonical as error:
        raise AnswersInvalid(f"the answers have no canonical form: {error}") from error
    return kept


def _fault(question: Question, response: Any) -> str | None:
    """What is wrong with an answer, if anything is."""
    if not isinstance(response, dict):
        return "it must be an object"
    match ability_of(question):
        case Ability.FORM | Ability.ADDRESS:
            return _elicited(question["params"], response)
        case Ability.SAMPLING:
            spoken = response.get("role") in ("user", "assistant") and isinstance(response.get("model"), str)
            blocks = response.get("content")
            return None if spoken and isinstance(blocks, dict | list) else "it must have role, content and model"
        case _:
            roots = response.get("roots")
            fits = isinstance(roots, list) and all(
                isinstance(each, dict) and str(each.get("uri", "")).startswith("file://") for each in roots
            )
            return None if fits else "roots must be a list of objects with a file:// uri"


def _elicited(params: dict[str, Any], response: dict[str, Any]) -> str | None:
    if response.get("action") not in _ACTIONS:
        return f"action must be one of {', '.join(_ACTIONS)}"
    content = response.get("content")
    if response["action"] != "accept" or params["mode"] == "url":
        return "content goes with a form that was accepted, and with nothing else" if content else None
    if not isinstance(content, dict):
        return "content must be an object with the fields of the form"
    error = next(iter(compile_schema(params["requestedSchema"]).iter_errors(content)), None)
    return None if error is None else f"content{pointer(error.instance_path)} {error.message}"


def _refuse(why: str) -> NoReturn:
    raise RoundRefused(why)
