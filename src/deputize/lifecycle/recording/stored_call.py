"""Serialize a call so that it can be resumed: its caller and input, encrypted, and never a token."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson

from deputize.core.call import CallOrigin, CallRequest, Mutation
from deputize.core.caller import Caller, Capability, compute_decision_cache_key
from deputize.core.contract.contract import Effects
from deputize.core.mcp.elicitation import ClientCapability, InputRound
from deputize.core.settings import IssuerSettings
from deputize.govern.identity.claims import apply_origin_trust
from deputize.lifecycle.phases import Validated

_FORMAT_VERSION = 1
# The format of a call with input responses: releases that do not support them leave it to other workers.
_FORMAT_WITH_RESPONSES = 2
# The format of a caller with proven agents, likewise. Those of earlier releases have no primary issuer in it.
_FORMAT_WITH_PROOF = 4
_EARLIER_FORMAT_WITH_PROOF = 2
# The format of a caller with constraints, likewise: a release that does not enforce them must not execute the call.
_FORMAT_WITH_CONSTRAINTS = 3
_CALLER_FORMATS = (_FORMAT_VERSION, _EARLIER_FORMAT_WITH_PROOF, _FORMAT_WITH_CONSTRAINTS, _FORMAT_WITH_PROOF)


def serialize_caller(caller: Caller) -> bytes:
    return orjson.dumps(
        {
            "v": _choose_caller_format(caller),
            **(
                {"agent_issuers": caller.agent_issuers, "primary_issuer": caller.primary_issuer}
                if caller.proven_agents
                else {}
            ),
            **({"constraints": caller.constraints} if caller.constraints else {}),
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


def _choose_caller_format(caller: Caller) -> int:
    if caller.proven_agents:
        return _FORMAT_WITH_PROOF
    return _FORMAT_WITH_CONSTRAINTS if caller.constraints else _FORMAT_VERSION


def restore_caller(data: bytes, issuers: Iterable[IssuerSettings]) -> Caller:
    """Restore the caller with its current trust; raise `TokenIssuerUntrusted` if its issuer is no longer trusted."""
    fields: dict[str, Any] = orjson.loads(data)
    if fields.pop("v") not in _CALLER_FORMATS:
        raise ValueError("the caller was stored in a format that this release does not support")
    capabilities = fields.pop("capabilities")
    caller = Caller(
        capabilities=None
        if capabilities is None
        else tuple(Capability(tool=each[0], versions=each[1]) for each in capabilities),
        agents=tuple(fields.pop("agents")),
        agent_issuers=tuple(fields.pop("agent_issuers", ())),
        scopes=frozenset(fields.pop("scopes")),
        groups=frozenset(fields.pop("groups")),
        grants=tuple(fields.pop("grants")),
        pseudonyms=tuple(fields.pop("pseudonyms")),
        constraints=tuple(fields.pop("constraints", ())),
        ceiling=None if (ceiling := fields.pop("ceiling")) is None else Effects(ceiling),
        **fields,
    )
    caller = replace(caller, decision_cache_key=compute_decision_cache_key(caller))
    return apply_origin_trust(caller, next((each for each in issuers if each.issuer == caller.issuer), None))


def load_grants(data: bytes) -> Sequence[str]:
    """Load the ids of the grants that a stored caller acts by, without restoring it."""
    grants: list[str] = orjson.loads(data)["grants"]
    return grants


def serialize_input(validated: Validated) -> bytes:
    """Serialize the requested and the dispatched input; nothing may change it from here on."""
    request, input_round = validated.call.request, validated.input_round
    return orjson.dumps(
        {
            "v": _FORMAT_VERSION if input_round is None else _FORMAT_WITH_RESPONSES,
            "arguments": request.arguments,
            "call_input": None if validated.call_input is request.arguments else validated.call_input,
            "mutations": [[each.path, each.source, each.change] for each in validated.mutations],
            "step": request.step,
            # Not the caller's: what a worker does later is inside the span of this call, and recorded if it is.
            "traceparent": validated.call.trail.traceparent,
            **({"flow": [request.max_seconds, request.flow_depth]} if request.flow_depth else {}),
            **_serialize_origin(request.origin),
            **({} if request.undoes is None else {"undoes": request.undoes}),
            "client_capabilities": sorted(request.client_capabilities),
            "input_round": None
            if input_round is None
            else [input_round.continued_call_id, input_round.request_state, input_round.responses],
        }
    )


def _serialize_origin(origin: CallOrigin | None) -> dict[str, Any]:
    """Serialize where a call comes from; a release that does not know this runs the call without it."""
    if origin is None:
        return {}
    return {"origin": [origin.native_call_id, origin.parent_call_id, origin.flow_id]}


def _parse_origin(ids: list[str | None] | None) -> CallOrigin | None:
    return None if ids is None else CallOrigin(native_call_id=ids[0], parent_call_id=ids[1], flow_id=ids[2])


class StoredInput:
    """The decrypted input of a stored call."""

    __slots__ = (
        "arguments",
        "call_input",
        "client_capabilities",
        "flow_depth",
        "input_round",
        "max_seconds",
        "mutations",
        "origin",
        "step",
        "traceparent",
        "undoes",
    )

    def __init__(self, data: bytes) -> None:
        fields: dict[str, Any] = orjson.loads(data)
        if fields["v"] not in (_FORMAT_VERSION, _FORMAT_WITH_RESPONSES):
            raise ValueError("the input was stored in a format that this release does not support")
        self.arguments: dict[str, Any] = fields["arguments"]
        self.call_input: dict[str, Any] = fields["arguments"] if fields["call_input"] is None else fields["call_input"]
        self.mutations = tuple(Mutation(path=each[0], source=each[1], change=each[2]) for each in fields["mutations"])
        self.step: str | None = fields["step"]
        self.traceparent: str | None = fields["traceparent"]
        self.max_seconds: float | None
        self.flow_depth: int
        self.max_seconds, self.flow_depth = fields.get("flow", (None, 0))
        self.origin = _parse_origin(fields.get("origin"))
        self.undoes: str | None = fields.get("undoes")
        # Older entries have no field for input responses.
        self.client_capabilities = frozenset(ClientCapability(each) for each in fields.get("client_capabilities", ()))
        round_fields = fields.get("input_round")
        self.input_round = (
            None
            if round_fields is None
            else InputRound(continued_call_id=round_fields[0], request_state=round_fields[1], responses=round_fields[2])
        )

    def build_request(self, tool: str, version: str, session: str | None, **more: Any) -> CallRequest:
        return CallRequest(
            tool=tool,
            arguments=self.arguments,
            version=version,
            session=session,
            step=self.step,
            traceparent=self.traceparent,
            client_capabilities=self.client_capabilities,
            origin=self.origin,
            undoes=self.undoes,
            max_seconds=self.max_seconds,
            flow_depth=self.flow_depth,
            **more,
        )


def compute_expiry(caller: Caller, *, now_ms: int, longest_seconds: int) -> datetime:
    """Compute until when a run may act: for an agent until its delegation ends, for a user for a fixed time."""
    latest = now_ms / 1000 + longest_seconds
    return datetime.fromtimestamp(min(latest, caller.expires_at) if caller.agents else latest, UTC)


def is_recorded_maker(caller: Caller, pseudonyms: Sequence[str]) -> bool:
    """Tell whether an audit entry names this caller as its maker: the user, and for an agent its whole chain."""
    own_names = caller.pseudonyms
    return bool(own_names) and tuple(pseudonyms if caller.agents else pseudonyms[:1]) == own_names
