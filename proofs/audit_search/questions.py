"""The kinds of question and of people who ask them, and for each the answer by brute force from what was drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from proofs.audit_search.sample_log import AGENT, ERASED, PERSON, SCOPED_TOOL, Drawn

_CALL_KINDS: Final = frozenset({"read", "refusal", "intent", "outcome", "yield"})
# What a token tells about a tool's calls depends on its scopes; these are about the token, or one's own act.
_SEEN_WITHOUT_SCOPE: Final = frozenset({"refusal", "decision", "command"})
ABSENT_TRACE: Final = "f" * 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question: the parameters of the route, and what an entry has to be to answer it."""

    kind: str
    parameters: Mapping[str, str]
    is_asked: Callable[[Drawn], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """One kind of person who asks, as their token has them, and which entries of their tenant they may see."""

    kind: str
    user: str
    may_see: Callable[[Drawn], bool]
    agent: str | None = None
    scopes: tuple[str, ...] = ()


READERS: Final = (
    Reader(kind="administrator", user="root", scopes=("deputize:admin",), may_see=lambda _: True),
    Reader(kind="auditor", user="inspector", scopes=("deputize:audit",), may_see=lambda _: True),
    Reader(kind="person", user=PERSON, scopes=("proof:write",), may_see=lambda each: each.user == PERSON),
    Reader(
        kind="person without a scope",
        user=PERSON,
        may_see=lambda each: each.user == PERSON and (each.tool != SCOPED_TOOL or each.kind in _SEEN_WITHOUT_SCOPE),
    ),
    Reader(
        kind="agent",
        user=PERSON,
        agent=AGENT,
        scopes=("proof:write",),
        may_see=lambda each: each.is_of_agent and not each.is_of_other_grant,
    ),
)


def find_decision(drawn: Drawn) -> str | None:
    if drawn.outcome in ("denied", "blocked"):
        return "deny"
    if drawn.approval is not None:
        return "ask"
    return "allow" if drawn.rules and drawn.kind != "refusal" else None


def list_questions(entries: Sequence[Drawn], erased_pseudonym: str) -> list[Question]:
    """List kinds of question: frequent, rare and absent, alone and together."""
    since, until = (datetime.fromtimestamp((entries[at].id.int >> 80) / 1000, UTC) for at in (
        len(entries) * 2 // 5, len(entries) // 2,
    ))  # fmt: skip
    first, end = (int(each.timestamp() * 1000) for each in (since, until))
    own = next(each for each in entries if each.is_of_agent and not each.is_of_other_grant and each.session)
    session, trace = str(own.session), own.trace

    def ask(kind: str, is_asked: Callable[[Drawn], bool], /, **parameters: str) -> Question:
        return Question(kind=kind, is_asked=is_asked, parameters=parameters)

    def is_within(drawn: Drawn) -> bool:
        return first <= drawn.id.int >> 80 < end

    window = {"from": since.isoformat(), "to": until.isoformat()}
    return [
        ask("everything", lambda _: True),
        ask("time", is_within, **window),
        ask("caller", lambda e: e.user == PERSON, caller=PERSON),
        ask("rare caller", lambda e: e.user == "user-1999", caller="user-1999"),
        ask("unknown caller", lambda _: False, caller="nobody-at-all"),
        ask("erased caller by name", lambda _: False, caller=ERASED),
        ask("erased caller by pseudonym", lambda e: e.user == ERASED, caller=erased_pseudonym),
        ask("agent", lambda e: AGENT in e.agents, agent=AGENT),
        ask("caller and agent", lambda e: e.user == PERSON and AGENT in e.agents, caller=PERSON, agent=AGENT),
        ask("frequent tool", lambda e: e.tool == "crm.t0", tool="crm.t0"),
        ask("rare tool", lambda e: e.tool == "crm.t299", tool="crm.t299"),
        ask("tool with a scope", lambda e: e.tool == SCOPED_TOOL, tool=SCOPED_TOOL),
        ask("absent tool", lambda _: False, tool="crm.absent"),
        ask("allowed", lambda e: find_decision(e) == "allow", decision="allow"),
        ask("asked", lambda e: find_decision(e) == "ask", decision="ask"),
        ask("denied", lambda e: find_decision(e) == "deny", decision="deny"),
        ask("frequent rule", lambda e: "rule-0" in e.rules, rule="rule-0"),
        ask("rare rule", lambda e: "rule-rare" in e.rules, rule="rule-rare"),
        ask("succeeded", lambda e: e.outcome == "succeeded", outcome="succeeded"),
        ask("failed", lambda e: e.outcome == "failed", outcome="failed"),
        ask("unknown outcome", lambda e: e.outcome == "unknown", outcome="unknown"),
        ask("resource", lambda e: e.resource == "res-3", resource="res-3"),
        ask("session", lambda e: e.session == session, session=session),
        ask("quoted session", lambda e: e.session == 'the "quoted" one', session='the "quoted" one'),
        ask("trace", lambda e: e.trace == trace, trace=trace),
        ask("absent trace", lambda _: False, trace=ABSENT_TRACE),
        ask("refusals", lambda e: e.kind == "refusal", kind="refusal"),
        ask("outcomes", lambda e: e.kind == "outcome", kind="outcome"),
        ask("circuits", lambda e: e.kind == "circuit", kind="circuit"),
        ask("calls", lambda e: e.kind in _CALL_KINDS and e.call is not None, calls="true"),
        ask("tool and failure", lambda e: e.tool == "crm.t0" and e.outcome == "failed",
            tool="crm.t0", outcome="failed"),
        ask("caller, rule, time", lambda e: e.user == PERSON and "rule-0" in e.rules and is_within(e),
            caller=PERSON, rule="rule-0", **window),
        ask("agent and refusal", lambda e: AGENT in e.agents and find_decision(e) == "deny",
            agent=AGENT, decision="deny"),
        ask("session and tool", lambda e: e.session == session and e.tool == own.tool,
            session=session, tool=str(own.tool)),
    ]  # fmt: skip


def answer(question: Question, reader: Reader, entries: Sequence[Drawn]) -> list[UUID]:
    """Compute the answer from the drawn entries of the reader's tenant: every id, newest first."""
    is_asked, may_see = question.is_asked, reader.may_see
    found = [each.id for each in entries if is_asked(each) and may_see(each)]
    found.reverse()
    return found
