"""A call as it is written down to be gone on with: who asked and what for, sealed, and never with a token in it."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson

from deputize.core.call import CallRequest, Mutation
from deputize.core.caller import Caller, Capability, standing_of
from deputize.core.contract import Effects
from deputize.core.questions import Ability, Round
from deputize.core.settings import Issuer
from deputize.govern.identity.claims import still_vouched_for
from deputize.lifecycle.phases import Validated

_FORM = 1
# Of a call that answers questions: a release that knows nothing of them leaves it to the others.
_ANSWERS = 2


def caller_bytes(caller: Caller) -> bytes:
    return orjson.dumps(
        {
            "v": _FORM,
            "tenant": caller.tenant,
            "user": caller.user,
            "agents": caller.agents,
            "scopes": sorted(caller.scopes),
            "capabilities": None
            if caller.capabilities is None
            else [[each.tool, each.versions] for each in caller.capabilities],
            "session": caller.session,
            "token_id": caller.token_id,
            "issuer": caller.issuer,
            "expires_at": caller.expires_at,
            "issued_at": caller.issued_at,
            "groups": sorted(caller.groups),
            "trust": caller.trust,
            "human": caller.human,
            "auth_time": caller.auth_time,
            "grants": caller.grants,
            "first_token": caller.first_token,
            "task": caller.task,
            "ceiling": caller.ceiling,
            "pseudonyms": caller.pseudonyms,
        }
    )


def caller_from(written: bytes, issuers: Iterable[Issuer]) -> Caller:
    """The caller again, with the standing its facts have now. Raises `TokenIssuer` where nobody vouches for them any
    more; whoever is trusted less than they were is, too.
    """
    told: dict[str, Any] = orjson.loads(written)
    if told.pop("v") != _FORM:
        raise ValueError("a caller was written down in a form this release does not know")
    listed = told.pop("capabilities")
    caller = Caller(
        capabilities=None if listed is None else tuple(Capability(tool=each[0], versions=each[1]) for each in listed),
        agents=tuple(told.pop("agents")),
        scopes=frozenset(told.pop("scopes")),
        groups=frozenset(told.pop("groups")),
        grants=tuple(told.pop("grants")),
        pseudonyms=tuple(told.pop("pseudonyms")),
        ceiling=None if (ceiling := told.pop("ceiling")) is None else Effects(ceiling),
        **told,
    )
    caller = replace(caller, standing=standing_of(caller))
    return still_vouched_for(caller, next((each for each in issuers if each.issuer == caller.issuer), None))


def input_bytes(validated: Validated) -> bytes:
    """What was asked and what will be dispatched; nothing may change it from here on."""
    request, told = validated.received.request, validated.round
    return orjson.dumps(
        {
            "v": _FORM if told is None else _ANSWERS,
            "arguments": request.arguments,
            "call_input": None if validated.call_input is request.arguments else validated.call_input,
            "mutations": [[each.path, each.source, each.change] for each in validated.mutations],
            "step": request.step,
            "traceparent": request.traceparent,
            "can_answer": sorted(request.can_answer),
            "round": None if told is None else [told.continues, told.state, told.responses],
        }
    )


class WrittenInput:
    """The sealed input, read again."""

    __slots__ = ("arguments", "call_input", "can_answer", "mutations", "round", "step", "traceparent")

    def __init__(self, written: bytes) -> None:
        told: dict[str, Any] = orjson.loads(written)
        if told["v"] not in (_FORM, _ANSWERS):
            raise ValueError("an input was written down in a form this release does not know")
        self.arguments: dict[str, Any] = told["arguments"]
        self.call_input: dict[str, Any] = told["arguments"] if told["call_input"] is None else told["call_input"]
        self.mutations = tuple(Mutation(path=each[0], source=each[1], change=each[2]) for each in told["mutations"])
        self.step: str | None = told["step"]
        self.traceparent: str | None = told["traceparent"]
        # What was written before there were questions says nothing of them.
        self.can_answer = frozenset(Ability(each) for each in told.get("can_answer", ()))
        known = told.get("round")
        self.round = None if known is None else Round(continues=known[0], state=known[1], responses=known[2])

    def request(self, tool: str, version: str, session: str | None, **more: Any) -> CallRequest:
        return CallRequest(
            tool=tool,
            arguments=self.arguments,
            version=version,
            session=session,
            step=self.step,
            traceparent=self.traceparent,
            can_answer=self.can_answer,
            **more,
        )


def ends_at(caller: Caller, *, now_ms: int, longest_seconds: int) -> datetime:
    """Until when a run may act for this caller. Whoever delegated said so; who came in person lends it for a while."""
    own = now_ms / 1000 + longest_seconds
    return datetime.fromtimestamp(min(own, caller.expires_at) if caller.agents else own, UTC)
