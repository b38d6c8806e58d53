"""A ticket as it is made: what it is bound to, what people are shown of it, and its row."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from deputize.core.canonical import canonical
from deputize.core.decision import Demand
from deputize.core.frozen import frozen
from deputize.govern.approvals.binding import Bound, binding
from deputize.govern.approvals.demands import Asked, asked_of, demand_from, demands_told, written
from deputize.lifecycle.phases import Authorized, Validated
from deputize.lifecycle.preview import Previewed
from deputize.lifecycle.record import redaction_of
from deputize.lifecycle.rooms import Rooms
from deputize.store.keys import KeySet

_SEALED_AS = "ticket"


@frozen
class Ticket:
    """About to be opened, for one exact call."""

    id: str
    asked: Asked
    bound: Bound
    binding: bytes
    sealed: "Sealed"
    fresh_seconds: int | None

    def columns(self, keys: KeySet) -> tuple[Any, ...]:
        """In the order of `ask_run`."""
        return (*self._first(keys), *self._last())

    def columns_again(self, keys: KeySet) -> tuple[Any, ...]:
        """In the order of `ask_again`, which has no call row to take the tool from."""
        return (*self._first(keys), self.bound.tool, *self._last())

    def _first(self, keys: KeySet) -> tuple[Any, ...]:
        return (
            self.id,
            self.binding,
            orjson.dumps(written(self.asked)),
            self.sealed.box(keys, self.id),
            self.sealed.preview,
            self.fresh_seconds,
            list(self.bound.chain),
        )

    def _last(self) -> tuple[Any, ...]:
        return (
            f"{self.bound.tool_digest} {self.bound.policy}",
            sorted(self.asked.groups_at(0)),
            [float(each) for each in self.asked.levels],
            self.bound.expires_at,
        )


@frozen
class Sealed:
    """What a ticket holds that only its tenant's key opens: what people are shown, and what is handed to the effect."""

    shown: dict[str, Any]
    bound: dict[str, str]
    preview: bytes
    guards: Mapping[str, Any]
    # What hooks demanded: they spoke once, before people were asked, and are not heard again.
    hooked: tuple[Demand, ...]

    def box(self, keys: KeySet, ticket: str) -> bytes:
        told = {
            "shown": self.shown,
            "bound": self.bound,
            "preview": self.preview.hex(),
            "guards": self.guards,
            "hooked": demands_told(self.hooked),
        }
        return keys.seal(ticket, _SEALED_AS, orjson.dumps(told))

    @classmethod
    def opened(cls, keys: KeySet, ticket: str, box: bytes) -> "Sealed":
        told = orjson.loads(keys.open(ticket, _SEALED_AS, box))
        return cls(
            shown=told["shown"],
            bound=told["bound"],
            preview=bytes.fromhex(told["preview"]),
            guards=told["guards"],
            hooked=tuple(demand_from(each) for each in told["hooked"]),
        )


def new_ticket(
    rooms: Rooms, authorized: Authorized, call_id: str, previewed: Previewed, expires_at: datetime, keys: KeySet
) -> Ticket:
    hooked = tuple(
        demand for opinion in authorized.validated.hooked.permissions for demand in opinion.demands
    )  # fmt: skip
    bound = bound_to(rooms, authorized, call_id, previewed.digest, expires_at)
    sealed = Sealed(
        shown=_shown(rooms, authorized, previewed),
        bound=bound.parts(),
        preview=previewed.digest,
        guards=previewed.guards,
        hooked=hooked,
    )
    return Ticket(
        id=rooms.clock.new_id(),
        asked=asked_for(rooms, authorized),
        bound=bound,
        binding=binding(keys.fingerprint, bound),
        sealed=sealed,
        fresh_seconds=previewed.fresh_seconds,
    )


def asked_for(rooms: Rooms, authorized: Authorized) -> Asked:
    return asked_of(authorized.decision.demands, rooms.settings.approvals)


def _shown(rooms: Rooms, authorized: Authorized, previewed: Previewed) -> dict[str, Any]:
    validated = authorized.validated
    contract, caller = validated.tool.contract, validated.received.caller
    return {
        "tool": {
            "name": contract.full_name,
            "version": contract.version,
            "digest": validated.tool.digest,
            "title": contract.title,
            "description": contract.description,
        },
        "effects": contract.effects,
        "undo": contract.undo,
        "for_user": caller.user,
        "agents": caller.agents,
        "task": caller.task,
        "session": validated.received.session,
        "environment": rooms.settings.environment,
        "arguments": redaction_of(validated.tool, "input").apply(validated.call_input)[0],
        **({} if validated.round is None else {"answers": validated.round.responses}),
        "preview": previewed.shown,
        "rules": [
            {"id": demand.rule, "where": demand.where, "reason": demand.reason}
            for demand in authorized.decision.demands
        ],
    }


def _said(validated: Validated) -> bytes:
    """What goes to the tool, and with it whatever its server is answered, from the state it asked in."""
    told = validated.round
    if told is None:
        return canonical(validated.call_input)
    return canonical({"input": validated.call_input, "answers": told.responses, "continues": told.continues})


def bound_to(rooms: Rooms, authorized: Authorized, call_id: str, preview: bytes, expires_at: datetime) -> Bound:
    """Everything that must not differ between what people saw and what is begun."""
    validated = authorized.validated
    contract, caller = validated.tool.contract, validated.received.caller
    return Bound(
        tenant=caller.tenant,
        call=call_id,
        chain=caller.subjects,
        issuer=caller.issuer,
        grants=caller.grants,
        standing=caller.standing,
        tool=contract.full_name,
        tool_digest=validated.tool.digest,
        input=_said(validated),
        account=(contract.auth.credential, contract.auth.secret or "", contract.auth.audience or ""),
        environment=rooms.settings.environment,
        preview=preview,
        policy=authorized.decision.policy_digest,
        demands=orjson.dumps(demands_told(authorized.decision.demands)),
        expires_at=expires_at,
    )
