"""What may happen to a call that people are asked about: every kind of story, told by whoever takes part in it.

What is done is random and what must come of it is not: each kind says whether its call runs once, never, or either,
and why. Above: `proofs.approvals`. Below: `talk`, `house`.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from proofs.asked.house import TENANT, House
from proofs.asked.people import APPROVERS, GLAZIERS, LEADS, ONCALL
from proofs.asked.tale import Expect, Tale, Why
from proofs.asked.talk import Talk
from proofs.tools.asked import FRESH_SECONDS

Act = Callable[["Stories", Tale], Awaitable[None]]
_WRONG_WAYS = (
    "requester", "agent", "agent of the console", "wrong group", "later group", "stale sign-in", "no console audience",
    "other tenant", "another binding", "glass without the scope",
)  # fmt: skip
_OWN_RULE = """
@id("{name}")
@reason("Somebody agrees first.")
@decision("ask")
@approvers("{oncall}, {leads}")
permit (principal, action, resource == Tool::"asked.{name}");
"""
# Stricter, milder and merely different: none of them is what people said yes to.
_OTHER_RULES = (
    '@id("{name}") forbid (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") permit (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") @decision("ask") @approvers("{leads}")'
    ' permit (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") @decision("ask") @approvers("{oncall}, {leads}") @quorum("2")'
    ' permit (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") @decision("ask") @approvers("{oncall}, {leads}")'
    ' permit (principal, action, resource == Tool::"asked.{name}") when {{ true }};',
)
_FLIP = "set box = set_byte(box, length(box) - 1, get_byte(box, length(box) - 1) # 1)"
_TAMPER = {
    "the input": f"update deputize.sealed {_FLIP} where tenant = $1 and id = $2 and kind = 'input'",
    "no input": "delete from deputize.sealed where tenant = $1 and id = $2 and kind = 'input'",
    "another's input": """
        update deputize.sealed s set box = o.box from (select box from deputize.sealed
        where tenant = $1 and id <> $2 and kind = 'input' order by id desc limit 1) as o
        where s.tenant = $1 and s.id = $2 and s.kind = 'input'""",
    "the caller": """
        update deputize.runs set caller = set_byte(caller, length(caller) - 1, get_byte(caller, length(caller) - 1) # 1)
        where tenant = $1 and id = $2""",
    "another's caller": """
        update deputize.runs r set caller = o.caller from (select caller from deputize.runs
        where tenant = $1 and id <> $2 order by id desc limit 1) as o where r.tenant = $1 and r.id = $2""",
    "the time to decide": """
        update deputize.approvals set expires_at = expires_at + interval '1 hour' where tenant = $1 and call_id = $2""",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    share: int
    expect: Expect
    act: Act
    tool: str = ""
    why: Why = Why.NOT_APPROVED
    hasty: bool = False
    own_tool: bool = False


class Stories:
    """`lent` are tokens that somebody lent to an agent: the user, the agent, and the token."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.talk = Talk(house)
        self.tales: list[Tale] = []
        self.lent: list[tuple[str, str, str]] = []

    async def prepare(self, kinds: Sequence[str], prefix: str = "act") -> None:
        """Tools of their own for stories in which one is changed, so that nobody else's is."""
        own = [_own_tool(f"{prefix}-{number}") for number, kind in enumerate(kinds) if KINDS[kind].own_tool]
        for name in own:
            await self.house.new_tool(name)
        await self.house.put_rules(**{name: _OWN_RULE.format(name=name, oncall=ONCALL, leads=LEADS) for name in own})

    async def tell(self, number: int, kind: str, prefix: str = "act") -> None:
        tale = self.begun(f"{prefix}-{number}", kind)
        self.tales.append(tale)
        await KINDS[kind].act(self, tale)

    def begun(self, label: str, name: str) -> Tale:
        kind, choose = KINDS[name], self.house.choose
        user, agent = f"ann-{label}", choose.choice((None, f"bot-{label}"))
        token = self.house.people.asks(user, agent, token_id=f"token-{label}")
        if agent is not None and self.lent and not name.startswith("revoked") and choose.random() < 0.5:
            user, agent, token = choose.choice(self.lent)
        tool = kind.tool or choose.choice(("asked.book", "asked.book", "asked.send"))
        if kind.own_tool:
            tool = f"asked.{_own_tool(label)}"
        tale = Tale(
            label=label, kind=name, user=user, agent=agent, tool=tool, token=token, hasty=kind.hasty,
            expect=kind.expect, why=kind.why, delay_ms=choose.choice((0, 0, 50, 250)),
        )  # fmt: skip
        if tool == "asked.wipe":
            (self.house.things / label).write_text(tale.mark)
        return tale

    async def ask(self, tale: Tale) -> None:
        """Asked, and some who may not have tried to decide it."""
        await self.talk.ask(tale)
        choose = self.house.choose
        for how in choose.sample(_WRONG_WAYS, choose.choice((0, 0, 1, 1, 2))):
            if not (tale.hasty and how == "later group"):
                await self.talk.wrongly(tale, how)

    def approver(self) -> str:
        return self.house.choose.choice(APPROVERS)

    async def approved(self, tale: Tale) -> None:
        await self.ask(tale)
        await self._pause()
        await self.talk.approve(tale, self.approver())

    async def denied(self, tale: Tale) -> None:
        await self.ask(tale)
        await self._pause()
        await self.talk.deny(tale, self.approver())
        await self.talk.approve(tale, self.approver())

    async def by_two(self, tale: Tale) -> None:
        tale.people_needed = 2
        await self.ask(tale)
        first, second = self.house.choose.sample(APPROVERS, 2)
        await self.talk.approve(tale, first)
        await self.talk.approve(tale, first)
        await self.talk.approve(tale, second)

    async def one_of_two(self, tale: Tale) -> None:
        tale.people_needed = 2
        await self.ask(tale)
        await self.talk.approve(tale, who := self.approver())
        await self.talk.approve(tale, who)

    async def broken_glass(self, tale: Tale) -> None:
        tale.people_needed = 2
        await self.ask(tale)
        for who in GLAZIERS:
            await self.talk.approve(tale, who, word="break-glass")

    async def glass_alone(self, tale: Tale) -> None:
        tale.people_needed = 2
        await self.ask(tale)
        await self.talk.approve(tale, GLAZIERS[0], word="break-glass")
        await self.talk.approve(tale, GLAZIERS[0], word="break-glass")

    async def undecided(self, tale: Tale) -> None:
        await self.ask(tale)

    async def late(self, tale: Tale) -> None:
        await self.ask(tale)
        await self._until_over(tale)
        await self.talk.approve(tale, self.approver())
        await self.talk.deny(tale, self.approver())

    async def in_haste(self, tale: Tale) -> None:
        """Said in time; whether there is still time when it is begun is seen by two clocks."""
        await self.ask(tale)
        await self.talk.approve(tale, self.approver())

    async def expired_in_the_dark(self, tale: Tale) -> None:
        async with self.house.darkness.spent():
            await self.talk.ask(tale)
            await self.talk.approve(tale, self.approver())
            await self._until_over(tale)

    async def yes_and_yes(self, tale: Tale) -> None:
        await self.ask(tale)
        await self._at_once(tale, "approve", "approve")

    async def yes_and_no(self, tale: Tale) -> None:
        await self.ask(tale)
        await self._at_once(tale, "approve", "deny")

    async def _at_once(self, tale: Tale, *words: str) -> None:
        people = self.house.choose.sample(APPROVERS, len(words))
        serving = [gate for gate in self.house.gates if gate.born is not None]
        gates = self.house.choose.sample(serving, len(words)) if len(serving) >= len(words) else [None] * len(words)
        await asyncio.gather(
            *(
                self.talk.approve(tale, who, word=word, gate=gate)
                for who, word, gate in zip(people, words, gates, strict=True)
            )
        )

    async def other_arguments(self, tale: Tale) -> None:
        await self.ask(tale)
        await self.talk.ask_otherwise(tale)
        await self.talk.approve(tale, self.approver())
        await self.talk.ask_otherwise(tale)

    async def newer_version(self, tale: Tale) -> None:
        """What was approved goes on as the version it was asked for."""
        await self.ask(tale)
        await self.house.new_tool(tale.tool.partition(".")[2], version="1.1.0")
        await self.talk.approve(tale, self.approver())

    async def seen_again_the_same(self, tale: Tale) -> None:
        await self.ask(tale)
        await asyncio.sleep(1.2 * FRESH_SECONDS)
        await self.talk.approve(tale, self.approver())

    async def would_do_something_else(self, tale: Tale) -> None:
        """The yes to what it was is none to what it is now: people are asked again, and say anything or nothing."""
        await self.ask(tale)
        tale.mark = "as it is now"
        (self.house.things / tale.label).write_text(tale.mark)
        await asyncio.sleep(1.2 * FRESH_SECONDS)
        await self.talk.approve(tale, self.approver())
        await self.talk.until_asked_again(tale)
        if len(tale.tickets) == 1:
            tale.wrong.append("nobody was asked again")
            return
        match self.house.choose.choice(("yes", "no", "nothing")):
            case "yes":
                await self._pause()
                tale.expect = Expect.RUNS
                await self.talk.approve(tale, self.approver())
            case "no":
                await self.talk.deny(tale, self.approver())
            case _:
                pass

    async def changed_before(self, tale: Tale) -> None:
        await self.ask(tale)
        await self._change(tale)
        await self.talk.approve(tale, self.approver())

    async def changed_after(self, tale: Tale) -> None:
        await self.ask(tale)
        async with self.house.darkness.spent():
            await self.talk.approve(tale, self.approver())
            await self._change(tale)

    async def changed_meanwhile(self, tale: Tale) -> None:
        await self.ask(tale)

        async def soon() -> None:
            await asyncio.sleep(self.house.choose.uniform(0, 0.3))
            await self._change(tale)

        await asyncio.gather(self.talk.approve(tale, self.approver()), soon())

    async def _change(self, tale: Tale) -> None:
        """What the kind of the tale says changes."""
        house, choose = self.house, self.house.choose
        match tale.kind.split()[0]:
            case "rules":
                own = tale.tool.partition(".")[2]
                rule = choose.choice(_OTHER_RULES).format(name=own, oncall=ONCALL, leads=LEADS)
                tale.raced = ("put_policies", await house.put_rules(**{own: rule}))
            case "tool":
                state = choose.choice(("retired", "disabled"))
                tale.raced = (f"set_state:{state}", f"{tale.tool}@1.0.0")
                await house.command("POST", f"/v1/tools/{tale.tool}/versions/1.0.0/state", {"state": state})
            case "revoked":
                what = [("user", tale.user), ("subject", tale.user), ("token", f"token-{tale.label}")]
                what += [("agent", tale.agent)] if tale.agent else []
                kind, value = choose.choice(what)
                tale.raced = (f"revoke:{kind}", value)
                await house.command("POST", "/v1/revocations", {"kind": kind, "value": value})
            case _:
                await house.database.fetch(choose.choice(list(_TAMPER.values())), TENANT, tale.call)

    async def _pause(self) -> None:
        await asyncio.sleep(self.house.choose.choice((0, 0, 0.2, 1.0)))

    async def _until_over(self, tale: Tale) -> None:
        await asyncio.sleep(max(0.0, tale.expires - time.time()) + 0.05)


def _own_tool(label: str) -> str:
    return label.replace("-", "_")


def some_kinds(count: int, choose: random.Random) -> list[str]:
    """Every kind at least once, then any, in any order."""
    shares = [kind.share for kind in KINDS.values()]
    kinds = [*KINDS, *choose.choices(list(KINDS), shares, k=max(count - len(KINDS), 0))]
    choose.shuffle(kinds)
    return kinds


def _changes(act: Act, share: int, when: str, why: Why = Why.CHANGED, expect: Expect = Expect.NEVER) -> dict[str, Kind]:
    own = {"rules", "tool"}
    return {
        f"{what} {when}": Kind(share=share, expect=expect, act=act, why=why, own_tool=what in own)
        for what in ("rules", "tool", "revoked", "tampered")
    }


KINDS: dict[str, Kind] = {
    "approved": Kind(share=20, expect=Expect.RUNS, act=Stories.approved),
    "approved by two": Kind(share=5, expect=Expect.RUNS, act=Stories.by_two, tool="asked.pair"),
    "one of two": Kind(share=2, expect=Expect.NEVER, act=Stories.one_of_two, tool="asked.pair"),
    "broken glass": Kind(share=2, expect=Expect.RUNS, act=Stories.broken_glass),
    "glass broken alone": Kind(share=2, expect=Expect.NEVER, act=Stories.glass_alone),
    "denied": Kind(share=8, expect=Expect.NEVER, act=Stories.denied),
    "undecided": Kind(share=5, expect=Expect.NEVER, act=Stories.undecided, why=Why.EXPIRED, hasty=True),
    "late": Kind(share=6, expect=Expect.NEVER, act=Stories.late, why=Why.EXPIRED, hasty=True),
    "in haste": Kind(share=4, expect=Expect.EITHER, act=Stories.in_haste, hasty=True),
    "expired in the dark": Kind(
        share=4, expect=Expect.NEVER, act=Stories.expired_in_the_dark, why=Why.EXPIRED, hasty=True
    ),
    "yes and yes at once": Kind(share=5, expect=Expect.RUNS, act=Stories.yes_and_yes),
    "yes and no at once": Kind(share=5, expect=Expect.EITHER, act=Stories.yes_and_no),
    "other arguments": Kind(share=3, expect=Expect.RUNS, act=Stories.other_arguments),
    "newer version": Kind(share=2, expect=Expect.RUNS, act=Stories.newer_version, own_tool=True),
    "seen again the same": Kind(share=3, expect=Expect.RUNS, act=Stories.seen_again_the_same, tool="asked.wipe"),
    "would do something else": Kind(
        share=4, expect=Expect.NEVER, act=Stories.would_do_something_else, tool="asked.wipe", why=Why.CHANGED
    ),
    **_changes(Stories.changed_before, 2, "before"),
    **_changes(Stories.changed_after, 2, "after"),
    **{
        name: kind
        for name, kind in _changes(Stories.changed_meanwhile, 2, "meanwhile", expect=Expect.EITHER).items()
        if not name.startswith("tampered")
    },
}
