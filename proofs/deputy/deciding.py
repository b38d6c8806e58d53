"""Who decides about calls that people are asked about: everybody tries who must not, then those who may.

Each of the wrong ones is told why, by the rule that speaks first. Above: `proofs.confused_deputy`. Below: `site`,
`answers`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from deputize.core.errors import TicketNotFound, TokenAudience
from deputize.govern.approvals import deciders as rules
from proofs.deputy.answers import rule_of
from proofs.deputy.pages import form_token, pages
from proofs.deputy.pairs import Hand
from proofs.deputy.site import ADMIN, APPROVER, APPROVER_BESIDE, GLASS, GLAZIERS, HERE, SCOPES, Site
from proofs.deputy.things import ASKED
from proofs.kit.jws import claims_of
from proofs.kit.wire import Answer, Line

_LONG_AGO = 3600
_UNSEEN, _NOT_THEIRS = TicketNotFound.face.slug, TokenAudience.face.slug
_SAID = {"reason": "seen"}
_WORDS: Mapping[str, dict[str, Any]] = {"approve": _SAID, "deny": _SAID, "break-glass": _SAID}
_VOICES = """
    select (select count(*) from deputize.votes where tenant = $1)
         + (select count(*) from deputize.approvals where tenant = $1 and state <> 'open')
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decider:
    """Somebody who must not decide, and the rule or the problem that says so to a yes or a no."""

    label: str
    token: str
    why: str


@dataclass(kw_only=True, slots=True)
class Decided:
    tries: int = 0
    wrongly: int = 0
    odd: int = 0
    """Refused, and for another reason than the right one."""
    samples: list[str] = field(default_factory=list)

    def note(self, what: str, answer: Answer) -> None:
        if len(self.samples) < 12:
            self.samples.append(f"{what}: {answer.status} {answer.body[:200]!r}")


async def wrong_deciders(site: Site, hand: Hand) -> list[Decider]:
    """Everybody who must not decide about calls of this person through this agent, with all else they could need."""
    line, key = Line.to(site.url), site.idp.key()
    admin, approver = await site.person(ADMIN, *SCOPES), await site.person(APPROVER, "proof:write")
    agent = await site.agent(hand.agent, *SCOPES)
    everything = {"scope": " ".join(SCOPES)}
    lent, approvers_own = (await site.lend(line, admin, agent, **everything), await site.lend(line, approver, agent))
    line.close()
    good = claims_of(await site.for_deciding(APPROVER, GLASS))
    signed_in = {**good, "auth_time": int(time.time()) - _LONG_AGO}
    undated = {name: value for name, value in good.items() if name != "auth_time"}
    return [
        Decider(label="the agent that called", token=hand.token, why=rules.HUMANS_ONLY),
        Decider(label="the agent for an administrator", token=lent, why=rules.HUMANS_ONLY),
        Decider(label="the agent for an approver", token=approvers_own, why=_UNSEEN),
        Decider(label="the agent by itself", token=agent, why=rules.HUMANS_ONLY),
        Decider(label="the agent for the console", token=await site.agent_for_deciding(hand.agent), why=_NOT_THEIRS),
        Decider(
            label="the agent's name, signed in", token=await site.for_deciding(hand.agent, GLASS),
            why=rules.NO_SELF_APPROVAL,
        ),
        Decider(
            label="whoever lent, signed in", token=await site.for_deciding(hand.user, GLASS), why=rules.NO_SELF_APPROVAL
        ),
        Decider(
            label="whoever lent", token=await site.person(hand.user, "proof:write"), why=rules.CONSOLE_AUDIENCE
        ),
        Decider(label="an administrator", token=admin, why=rules.CONSOLE_AUDIENCE),
        Decider(
            label="an administrator, signed in", token=await site.for_deciding(ADMIN, *SCOPES), why=rules.APPROVER_GROUP
        ),
        Decider(label="an approver, not for deciding", token=approver, why=_UNSEEN),
        Decider(label="an approver of long ago", token=key.sign(signed_in), why=rules.FRESH_SIGN_IN),
        Decider(label="an approver of no known time", token=key.sign(undated), why=rules.FRESH_SIGN_IN),
        Decider(
            label="an approver in an agent's hands", token=key.sign({**good, "act": {"sub": hand.agent}}),
            why=_NOT_THEIRS,
        ),
        Decider(
            label="an approver's ID token", token=await site.id_token(APPROVER), why=_NOT_THEIRS
        ),
        Decider(label="somebody else, signed in", token=await site.for_deciding("user-1"), why=_UNSEEN),
        Decider(
            label="an approver beside", token=await site.for_deciding(APPROVER_BESIDE, *SCOPES, GLASS), why=_UNSEEN
        ),
    ]  # fmt: skip


async def open_ticket(site: Site, hand: Hand, word: str) -> str:
    """A question about a call of this person through this agent."""
    line = Line.to(site.url, token=hand.token)
    answer = await line.post("/v1/calls", {"tool": ASKED, "arguments": {"word": word}})
    line.close()
    if answer.status != 202:
        raise RuntimeError(f"nobody was asked about a call: {answer.status} {answer.body[:500]!r}")
    return str(answer.json()["approval"]["ticket_id"])


async def decide_wrongly(site: Site, ticket: str, wrong: Sequence[Decider]) -> Decided:
    """Each says every word there is, about a ticket that is open all the while."""
    found, before = Decided(), await _voices(site)
    for each in wrong:
        line = Line.to(site.url, token=each.token)
        for word, said in _WORDS.items():
            answer = await line.post(f"/v1/approvals/{ticket}/{word}", said)
            found.tries += 1
            if answer.status < 400:
                found.wrongly += 1
                found.note(f"{each.label} could {word}", answer)
            elif word != "break-glass" and rule_of(answer) != each.why:
                found.odd += 1
                found.note(f"{each.label} could not {word}, but not for {each.why}", answer)
        for word in ("approve", "deny"):
            answer = await line.post("/v1/approvals/batch", {"tickets": [ticket], "decision": word, **_SAID})
            found.tries += 1
            if answer.status < 400 and any("refused" not in one for one in answer.json()["decisions"]):
                found.wrongly += 1
                found.note(f"{each.label} could {word} several", answer)
        line.close()
    found.wrongly += int(before != await _voices(site))
    return found


async def decide_rightly(site: Site, hand: Hand) -> list[str]:
    """The positive control: those who may, each in their own way. What of it was refused."""
    tickets = {
        word: await open_ticket(site, hand, word) for word in ("approve", "deny", "glass", "page yes", "page no")
    }
    many = [await open_ticket(site, hand, f"batch {number}") for number in range(2)]
    approver = Line.to(site.url, token=await site.for_deciding(APPROVER))
    ends = {
        "an approver's yes": (await approver.post(f"/v1/approvals/{tickets['approve']}/approve", _SAID), "approved"),
        "an approver's no": (await approver.post(f"/v1/approvals/{tickets['deny']}/deny", _SAID), "denied"),
    }
    for name, state in zip(GLAZIERS, ("open", "approved"), strict=True):
        glazier = Line.to(site.url, token=await site.for_deciding(name, GLASS))
        ends[f"{name} breaks the glass"] = (
            await glazier.post(f"/v1/approvals/{tickets['glass']}/break-glass", _SAID), state
        )  # fmt: skip
        glazier.close()
    shut = [
        f"{label}: {answer.status} {answer.body[:200]!r}"
        for label, (answer, state) in ends.items()
        if answer.status != 200 or answer.json()["state"] != state
    ]
    batch = await approver.post(
        "/v1/approvals/batch", {"tickets": many, "decision": "approve", "vary": ["word"], **_SAID}
    )
    if batch.status != 200 or {one["state"] for one in batch.json()["decisions"]} != {"approved"}:
        shut.append(f"an approver's yes to several: {batch.status} {batch.body[:200]!r}")
    shut += await _on_pages(site, approver, {"approve": tickets["page yes"], "deny": tickets["page no"]})
    approver.close()
    return shut


async def _on_pages(site: Site, approver: Line, tickets: Mapping[str, str]) -> list[str]:
    """The same with the forms of the console, in a browser of the approver's."""
    session = await site.session(APPROVER)
    token, line, shut = await form_token(site.url, session), Line.to(site.url), []
    for word, ticket in tickets.items():
        shown = (await approver.get(f"/v1/approvals/{ticket}")).json()
        filled = {"form_token": token, "binding": shown["binding"], **_SAID}
        (door,) = (each for each in pages(site.url, ticket, filled) if each.path.endswith(f"/{word}"))
        answer = await door.ask(line, session)
        after = (await approver.get(f"/v1/approvals/{ticket}")).json()["state"]
        if answer.status != 303 or after == "open":
            shut.append(f"an approver's {word} on a page: {answer.status}, {after}")
    line.close()
    return shut


async def _voices(site: Site) -> int:
    """How often anybody was heard here."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(site.postgres.dsn)
    try:
        return int(await connection.fetchval(_VOICES, HERE))
    finally:
        await connection.close()
