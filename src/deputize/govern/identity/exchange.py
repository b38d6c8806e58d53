"""What becomes of a caller's authority when it is lent to an agent (RFC 8693). Pure: it only ever shrinks.

Scopes and tools are chosen among those the token in hand has, its ceiling may only fall, its end may only come nearer,
and the agent is put before everybody the token already names. Above: `lifecycle/delegate.py`, which records the
delegation before anybody gets a token of it. Below: nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from deputize.core.caller import ADMIN_SCOPE, BREAK_GLASS_SCOPE, Caller, Capability
from deputize.core.contract import Effects
from deputize.core.errors import ExchangeRefused
from deputize.govern.identity.claims import MAX_AGENTS, MAX_CAPABILITIES, MAX_SUBJECT_LENGTH, MAX_TASK_LENGTH, is_text
from deputize.govern.identity.dids import is_did

MAX_CONSTRAINTS_BYTES = 4096
# The rules that speak here, by the names that refusals carry.
SCOPES, TOOLS, CEILING, TASK, LIFETIME, AGENT = (
    f"exchange-{word}" for word in ("scopes", "tools", "ceiling", "task", "lifetime", "agent")
)
_WORST_LAST = (Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE)
_EVERY_VERSION = "*"
InRange = Callable[[str, str], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a new delegation should be. None leaves a limit as the token in hand has it.

    `proven` says that the agent itself showed who it is; else whoever holds the token vouches for the name.
    """

    agent: str
    proven: bool = False
    scopes: frozenset[str] | None = None
    tools: tuple[Capability, ...] | None = None
    ceiling: Effects | None = None
    task: str | None = None
    constraints: bytes | None = None
    lifetime: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delegation:
    """A durable grant, before it is one: everything its row and its token say."""

    id: str
    parent: str | None
    tenant: str
    user: str
    agents: tuple[str, ...]
    grants: tuple[str, ...]
    scopes: frozenset[str]
    tools: tuple[Capability, ...] | None
    ceiling: Effects | None
    task: str | None
    constraints: bytes | None
    issued_at: int
    not_after: int


def shrunk(caller: Caller, asked: Asked, *, id: str, now: int, longest: int, in_range: InRange) -> Delegation:
    """The delegation a caller may make, or the exact reason why it may not.

    `in_range(versions, version)` says whether one exact version lies in a range.
    """
    _require_agent(caller, asked)
    return Delegation(
        id=id,
        parent=caller.grants[0] if caller.grants else None,
        tenant=caller.tenant,
        user=caller.user,
        agents=(asked.agent, *caller.agents),
        grants=(id, *caller.grants),
        scopes=_scopes(caller, asked.scopes),
        tools=_tools(caller.capabilities, asked.tools, in_range),
        ceiling=_ceiling(caller.ceiling, asked.ceiling),
        task=_task(caller.task, asked.task),
        constraints=asked.constraints,
        issued_at=now,
        not_after=_end(caller, asked.lifetime, now, longest),
    )


def _require_agent(caller: Caller, asked: Asked) -> None:
    if not is_text(asked.agent, MAX_SUBJECT_LENGTH):
        _refuse(AGENT, "the agent needs a name without control characters, and not a long one")
    if is_did(asked.agent) and not asked.proven:
        _refuse(
            AGENT,
            "nobody can vouch for a DID: the agent signs for itself",
            advice="Send an actor_token that the DID signed, with this gateway as its audience.",
        )
    if len(caller.agents) >= MAX_AGENTS or len(caller.grants) >= MAX_AGENTS:
        _refuse(AGENT, f"this would be passed on for more than the {MAX_AGENTS}th time")


def _scopes(caller: Caller, asked: frozenset[str] | None) -> frozenset[str]:
    if asked is None:
        # Administering is lent only by name; what people must do themselves helps no agent.
        return caller.scopes - {ADMIN_SCOPE, BREAK_GLASS_SCOPE}
    more = sorted(asked - caller.scopes)
    if more:
        _refuse(SCOPES, f"the token in hand does not have the scopes {', '.join(more)}", missing_scopes=more)
    return asked


def _tools(
    held: tuple[Capability, ...] | None, asked: tuple[Capability, ...] | None, in_range: InRange
) -> tuple[Capability, ...] | None:
    if asked is None:
        return held
    wanted = tuple(dict.fromkeys(asked))
    if len(wanted) > MAX_CAPABILITIES:
        _refuse(TOOLS, f"a token can name {MAX_CAPABILITIES} tools at most")
    for each in wanted:
        if held is not None and not any(_holds(one, each, in_range) for one in held):
            _refuse(
                TOOLS,
                f"the token in hand does not cover {each.tool} in versions {each.versions}",
                tool=each.tool,
                held=[one.versions for one in held if one.tool == each.tool],
            )
    return wanted


def _holds(held: Capability, wanted: Capability, in_range: InRange) -> bool:
    """Whether every version of the wanted range surely lies in the held one. Ranges that would take thinking about are
    not thought about: the same range, one exact version, or everything.
    """
    if held.tool != wanted.tool:
        return False
    return held.versions in (_EVERY_VERSION, wanted.versions) or in_range(held.versions, wanted.versions)


def _ceiling(held: Effects | None, asked: Effects | None) -> Effects | None:
    if asked is None:
        return held
    if held is not None and _WORST_LAST.index(asked) > _WORST_LAST.index(held):
        _refuse(CEILING, f"the token in hand allows nothing worse than {held}", ceiling=held)
    return asked


def _task(held: str | None, asked: str | None) -> str | None:
    """A task, once named, stays: budgets are counted by it."""
    if asked is None:
        return held
    if not is_text(asked, MAX_TASK_LENGTH):
        _refuse(TASK, f"a task is named in at most {MAX_TASK_LENGTH} characters, none of them control characters")
    if held is not None and asked != held:
        _refuse(TASK, "the token in hand was lent for another task", task=held)
    return asked


def _end(caller: Caller, lifetime: int | None, now: int, longest: int) -> int:
    if lifetime is not None and lifetime < 1:
        _refuse(LIFETIME, "a delegation lives a second at least")
    end = min(now + min(longest, lifetime or longest), caller.expires_at)
    if end <= now:
        _refuse(LIFETIME, "the token in hand is at its end")
    return end


def _refuse(rule: str, why: str, *, advice: str | None = None, **details: Any) -> NoReturn:
    raise ExchangeRefused(why, details={"rule": rule, **details}, advice=advice, nothing_happened=True)


def claims_of(delegation: Delegation, caller: Caller, *, audience: str) -> dict[str, Any]:
    """What the token of a delegation says, beside its issuer. `claims.delegate_of` reads it."""
    optional = {
        "tools": None if delegation.tools is None else shown_tools(delegation.tools),
        "ceiling": delegation.ceiling,
        "task": delegation.task,
        "sid": caller.session,
        "auth_time": caller.auth_time or None,
        "groups": sorted(caller.groups) or None,
    }
    return {
        "aud": audience,
        "sub": delegation.user,
        "act": nested(delegation.agents),
        "jti": delegation.id,
        "iat": delegation.issued_at,
        "exp": delegation.not_after,
        "scope": " ".join(sorted(delegation.scopes)),
        "grants": list(delegation.grants),
        "origin": caller.issuer,
        "origin_jti": caller.first_token or caller.token_id,
        "trust": caller.trust,
        **{name: value for name, value in optional.items() if value is not None},
    }


def shown_tools(tools: Sequence[Capability]) -> list[dict[str, str]]:
    return [{"tool_id": each.tool, "version_range": each.versions} for each in tools]


def nested(agents: Sequence[str]) -> dict[str, Any]:
    """The actors as RFC 8693 writes them, the nearest outermost."""
    act: dict[str, Any] = {"sub": agents[-1]}
    for agent in reversed(agents[:-1]):
        act = {"sub": agent, "act": act}
    return act
