"""What became of a call, to the client that made it: its result, or what its tool's server asks first.

Questions are passed on since 2026-07-28 as input that is required, to a client that declares that it can be asked them.
What it brings back as `requestState` is the round that the lifecycle gave out with them. A server that needs more than
the client can is told of as the protocol says it, with what is missing.

Above: `calling.py`, `reading.py`, `waiting.py`, `tasks.py`. Below: `results.py`.
"""

from typing import Any, Final

import orjson

from deputize.catalog.snapshot import ToolVersion
from deputize.core.errors import CallerCannotAnswer
from deputize.core.events import State
from deputize.core.mcp import CAPABILITY_MISSING, INVALID_PARAMS, META_PREFIX
from deputize.core.outcome import failure_body
from deputize.core.questions import Ability, Question, ability_of, capabilities_of
from deputize.doors.mcp.faces import RpcError
from deputize.doors.mcp.results import Envelope, meta_of, result_of
from deputize.doors.mcp.turn import Turn

SERVER: Final = META_PREFIX + "server"


def told_to(turn: Turn, envelope: Envelope, found: ToolVersion | None, *, replayed: bool = False) -> dict[str, Any]:
    """How the call ended, as this client can be told it. Raises where that is an error of the protocol."""
    asks = envelope.get("asks")
    if asks is None:
        require_able(turn, envelope)
        return result_of(envelope, found, turn.base, replayed=replayed)
    missing = _missing(turn, envelope)
    if missing:
        return told_to(turn, _unanswerable(envelope, missing), found, replayed=replayed)
    return {
        "resultType": "input_required",
        "inputRequests": asks["questions"],
        "requestState": asks["round"],
        "_meta": {**meta_of(envelope, found, turn.base, replayed), SERVER: asks["server"]},
    }


def questions_in(envelope: Envelope) -> dict[str, Question]:
    """What a call was asked back, if it was."""
    asks = envelope.get("asks")
    questions: dict[str, Question] = {} if asks is None else asks["questions"]
    return questions


def responses_in(turn: Turn) -> dict[str, Any]:
    """What the client brings as answers, by the names of the questions."""
    brought = turn.asked.params.get("inputResponses", {})
    if not isinstance(brought, dict) or not all(isinstance(each, dict) for each in brought.values()):
        raise RpcError(INVALID_PARAMS, "inputResponses must be an object with an object for each answer")
    return brought


def require_can(turn: Turn, envelope: Envelope) -> None:
    """Raises where this client cannot be asked what a call was asked back."""
    missing = _missing(turn, envelope)
    if missing:
        require_able(turn, _unanswerable(envelope, missing))


def _missing(turn: Turn, envelope: Envelope) -> set[Ability]:
    wanted = {ability for each in questions_in(envelope).values() if (ability := ability_of(each)) is not None}
    return wanted - turn.asked.client.abilities


def require_able(turn: Turn, envelope: Envelope) -> None:
    """That a call did not fail for what its client cannot be asked; that has an error of its own."""
    error = envelope.get("error") or {}
    if turn.asked.client.modern and error.get("slug") == CallerCannotAnswer.face.slug:
        needed = error["details"].get("requiredCapabilities", {})
        raise RpcError(CAPABILITY_MISSING, str(envelope["detail"]), {"requiredCapabilities": needed, **envelope})


def _unanswerable(envelope: Envelope, missing: set[Ability]) -> Envelope:
    """The same call to a client that cannot be asked: a repeated one may come from another client than the first."""
    server = envelope["asks"]["server"]
    problem = CallerCannotAnswer(
        f"the server {server} asks back, and this client does not declare that it can answer",
        details={"server": server, "requiredCapabilities": capabilities_of(missing)},
    )
    told: Envelope = orjson.loads(
        failure_body(
            problem, call_id=envelope["call_id"], state=State(envelope["state"]), trace_id=envelope["trace_id"], more={}
        )
    )
    return told
