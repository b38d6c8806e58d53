"""What may happen to a call that people are asked about: every kind of story, told by anyone who takes part in it.

What is done is random and what must come of it is not: each kind says whether its call runs once, never, or either,
and why.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from proofs.approvals.case import ApprovalCase, Expectation, NoRunReason
from proofs.approvals.client import ApprovalClient
from proofs.approvals.identities import APPROVERS, BREAK_GLASS_USERS, LEADS, ONCALL
from proofs.approvals.testbed import TENANT, Testbed
from proofs.tools.approvals import FRESH_SECONDS

ScenarioStep = Callable[["Scenarios", ApprovalCase], Awaitable[None]]
_WRONG_DECIDERS = (
    "requester", "agent", "agent of the console", "wrong group", "later group", "stale sign-in", "no console audience",
    "other tenant", "another binding", "glass without the scope",
)  # fmt: skip
_OWN_POLICY = """
@id("{name}")
@reason("Somebody agrees first.")
@decision("ask")
@approvers("{oncall}, {leads}")
permit (principal, action, resource == Tool::"asked.{name}");
"""
# Stricter, milder and merely different: none of them is what people said yes to.
_REPLACEMENT_POLICIES = (
    '@id("{name}") forbid (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") permit (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") @decision("ask") @approvers("{leads}")'
    ' permit (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") @decision("ask") @approvers("{oncall}, {leads}") @quorum("2")'
    ' permit (principal, action, resource == Tool::"asked.{name}");',
    '@id("{name}") @decision("ask") @approvers("{oncall}, {leads}")'
    ' permit (principal, action, resource == Tool::"asked.{name}") when {{ true }};',
)
_FLIP = (
    "set ciphertext = set_byte(ciphertext, length(ciphertext) - 1, get_byte(ciphertext, length(ciphertext) - 1) # 1)"
)
_TAMPER = {
    "the input": f"update deputize.sealed_payloads {_FLIP} where tenant = $1 and id = $2 and kind = 'input'",
    "no input": "delete from deputize.sealed_payloads where tenant = $1 and id = $2 and kind = 'input'",
    "another's input": """
        update deputize.sealed_payloads s set ciphertext = o.ciphertext
        from (select ciphertext from deputize.sealed_payloads
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
class Scenario:
    weight: int
    expectation: Expectation
    run: ScenarioStep
    tool: str = ""
    reason: NoRunReason = NoRunReason.NOT_APPROVED
    has_short_deadline: bool = False
    has_own_tool: bool = False


class Scenarios:
    """`lent` are tokens that someone lent to an agent: the user, the agent, and the token."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed
        self.client = ApprovalClient(testbed)
        self.cases: list[ApprovalCase] = []
        self.delegated_tokens: list[tuple[str, str, str]] = []

    async def prepare_tools(self, kinds: Sequence[str], prefix: str = "act") -> None:
        """Tools of their own for stories in which one is changed, so that no one else's is."""
        own = [
            _get_own_tool_name(f"{prefix}-{number}")
            for number, kind in enumerate(kinds)
            if SCENARIOS[kind].has_own_tool
        ]
        for name in own:
            await self.testbed.register_tool(name)
        await self.testbed.put_policies(
            **{name: _OWN_POLICY.format(name=name, oncall=ONCALL, leads=LEADS) for name in own}
        )

    async def run_scenario(self, number: int, kind: str, prefix: str = "act") -> None:
        case = self.create_case(f"{prefix}-{number}", kind)
        self.cases.append(case)
        await SCENARIOS[kind].run(self, case)

    def create_case(self, label: str, name: str) -> ApprovalCase:
        scenario, rng = SCENARIOS[name], self.testbed.rng
        user, agent = f"ann-{label}", rng.choice((None, f"bot-{label}"))
        token = self.testbed.people.issue_caller_token(user, agent, token_id=f"token-{label}")
        if agent is not None and self.delegated_tokens and not name.startswith("revoked") and rng.random() < 0.5:
            user, agent, token = rng.choice(self.delegated_tokens)
        tool = scenario.tool or rng.choice(("asked.book", "asked.book", "asked.send"))
        if scenario.has_own_tool:
            tool = f"asked.{_get_own_tool_name(label)}"
        case = ApprovalCase(
            label=label,
            kind=name,
            user=user,
            agent=agent,
            tool=tool,
            token=token,
            has_short_deadline=scenario.has_short_deadline,
            expectation=scenario.expectation,
            reason=scenario.reason,
            delay_ms=rng.choice((0, 0, 50, 250)),
        )
        if tool == "asked.wipe":
            (self.testbed.things / label).write_text(case.guard_text)
        return case

    async def submit_call(self, case: ApprovalCase) -> None:
        """Asked, and some who may not have tried to decide it."""
        await self.client.submit_call(case)
        rng = self.testbed.rng
        for way in rng.sample(_WRONG_DECIDERS, rng.choice((0, 0, 1, 1, 2))):
            if not (case.has_short_deadline and way == "later group"):
                await self.client.decide_wrongly(case, way)

    def pick_approver(self) -> str:
        return self.testbed.rng.choice(APPROVERS)

    async def run_approved(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await self._pause()
        await self.client.approve(case, self.pick_approver())

    async def run_denied(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await self._pause()
        await self.client.deny(case, self.pick_approver())
        await self.client.approve(case, self.pick_approver())

    async def run_approved_by_two(self, case: ApprovalCase) -> None:
        case.quorum = 2
        await self.submit_call(case)
        first, second = self.testbed.rng.sample(APPROVERS, 2)
        await self.client.approve(case, first)
        await self.client.approve(case, first)
        await self.client.approve(case, second)

    async def run_one_of_two(self, case: ApprovalCase) -> None:
        case.quorum = 2
        await self.submit_call(case)
        await self.client.approve(case, who := self.pick_approver())
        await self.client.approve(case, who)

    async def run_break_glass(self, case: ApprovalCase) -> None:
        case.quorum = 2
        await self.submit_call(case)
        for who in BREAK_GLASS_USERS:
            await self.client.approve(case, who, action="break-glass")

    async def run_break_glass_alone(self, case: ApprovalCase) -> None:
        case.quorum = 2
        await self.submit_call(case)
        await self.client.approve(case, BREAK_GLASS_USERS[0], action="break-glass")
        await self.client.approve(case, BREAK_GLASS_USERS[0], action="break-glass")

    async def run_undecided(self, case: ApprovalCase) -> None:
        await self.submit_call(case)

    async def run_late_decision(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await self._sleep_until_expiry(case)
        await self.client.approve(case, self.pick_approver())
        await self.client.deny(case, self.pick_approver())

    async def run_near_deadline(self, case: ApprovalCase) -> None:
        """Said in time; whether there is still time when it is begun is seen by two clocks."""
        await self.submit_call(case)
        await self.client.approve(case, self.pick_approver())

    async def run_expired_in_outage(self, case: ApprovalCase) -> None:
        async with self.testbed.outage.join_outage():
            await self.client.submit_call(case)
            await self.client.approve(case, self.pick_approver())
            await self._sleep_until_expiry(case)

    async def run_two_approvals(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await self._decide_at_once(case, "approve", "approve")

    async def run_approval_and_denial(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await self._decide_at_once(case, "approve", "deny")

    async def _decide_at_once(self, case: ApprovalCase, *actions: str) -> None:
        people = self.testbed.rng.sample(APPROVERS, len(actions))
        live_slots = [slot for slot in self.testbed.gateway_slots if slot.process is not None]
        slots = (
            self.testbed.rng.sample(live_slots, len(actions))
            if len(live_slots) >= len(actions)
            else [None] * len(actions)
        )
        await asyncio.gather(
            *(
                self.client.approve(case, who, action=action, slot=gate)
                for who, action, gate in zip(people, actions, slots, strict=True)
            )
        )

    async def run_other_arguments(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await self.client.submit_other_arguments(case)
        await self.client.approve(case, self.pick_approver())
        await self.client.submit_other_arguments(case)

    async def run_newer_version(self, case: ApprovalCase) -> None:
        """What was approved goes on as the version it was asked for."""
        await self.submit_call(case)
        await self.testbed.register_tool(case.tool.partition(".")[2], version="1.1.0")
        await self.client.approve(case, self.pick_approver())

    async def run_unchanged_preview(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await asyncio.sleep(1.2 * FRESH_SECONDS)
        await self.client.approve(case, self.pick_approver())

    async def run_changed_preview(self, case: ApprovalCase) -> None:
        """The yes to what it was is none to what it is now: people are asked again, and say anything or nothing."""
        await self.submit_call(case)
        case.guard_text = "as it is now"
        (self.testbed.things / case.label).write_text(case.guard_text)
        await asyncio.sleep(1.2 * FRESH_SECONDS)
        await self.client.approve(case, self.pick_approver())
        await self.client.wait_for_new_request(case)
        if len(case.request_ids) == 1:
            case.faults.append("nobody was asked again")
            return
        match self.testbed.rng.choice(("yes", "no", "nothing")):
            case "yes":
                await self._pause()
                case.expectation = Expectation.RUNS
                await self.client.approve(case, self.pick_approver())
            case "no":
                await self.client.deny(case, self.pick_approver())
            case _:
                pass

    async def run_change_before(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        await self._apply_change(case)
        await self.client.approve(case, self.pick_approver())

    async def run_change_after(self, case: ApprovalCase) -> None:
        await self.submit_call(case)
        async with self.testbed.outage.join_outage():
            await self.client.approve(case, self.pick_approver())
            await self._apply_change(case)

    async def run_change_meanwhile(self, case: ApprovalCase) -> None:
        await self.submit_call(case)

        async def change_soon() -> None:
            await asyncio.sleep(self.testbed.rng.uniform(0, 0.3))
            await self._apply_change(case)

        await asyncio.gather(self.client.approve(case, self.pick_approver()), change_soon())

    async def _apply_change(self, case: ApprovalCase) -> None:
        """What the kind of the tale says changes."""
        testbed, rng = self.testbed, self.testbed.rng
        match case.kind.split()[0]:
            case "rules":
                tool_name = case.tool.partition(".")[2]
                policy = rng.choice(_REPLACEMENT_POLICIES).format(name=tool_name, oncall=ONCALL, leads=LEADS)
                case.concurrent_command = ("put_policies", await testbed.put_policies(**{tool_name: policy}))
            case "tool":
                state = rng.choice(("retired", "disabled"))
                case.concurrent_command = (f"set_state:{state}", f"{case.tool}@1.0.0")
                await testbed.run_admin_command("POST", f"/v1/tools/{case.tool}/versions/1.0.0/state", {"state": state})
            case "revoked":
                revocables = [("user", case.user), ("subject", case.user), ("token", f"token-{case.label}")]
                revocables += [("agent", case.agent)] if case.agent else []
                kind, value = rng.choice(revocables)
                case.concurrent_command = (f"revoke:{kind}", value)
                await testbed.run_admin_command("POST", "/v1/revocations", {"kind": kind, "value": value})
            case _:
                await testbed.database.fetch(rng.choice(list(_TAMPER.values())), TENANT, case.call_id)

    async def _pause(self) -> None:
        await asyncio.sleep(self.testbed.rng.choice((0, 0, 0.2, 1.0)))

    async def _sleep_until_expiry(self, case: ApprovalCase) -> None:
        # The gateway tells whole seconds, of which a request may live up to one more.
        await asyncio.sleep(max(0.0, case.expires_at + 1 - time.time()) + 0.05)


def _get_own_tool_name(label: str) -> str:
    return label.replace("-", "_")


def sample_scenarios(count: int, rng: random.Random) -> list[str]:
    """Every kind at least once, then any, in any order."""
    weights = [scenario.weight for scenario in SCENARIOS.values()]
    names = [*SCENARIOS, *rng.choices(list(SCENARIOS), weights, k=max(count - len(SCENARIOS), 0))]
    rng.shuffle(names)
    return names


def _build_change_scenarios(
    run: ScenarioStep,
    weight: int,
    moment: str,
    reason: NoRunReason = NoRunReason.CHANGED,
    expectation: Expectation = Expectation.NEVER,
) -> dict[str, Scenario]:
    own_tool_changes = {"rules", "tool"}
    return {
        f"{change} {moment}": Scenario(
            weight=weight, expectation=expectation, run=run, reason=reason, has_own_tool=change in own_tool_changes
        )
        for change in ("rules", "tool", "revoked", "tampered")
    }


SCENARIOS: dict[str, Scenario] = {
    "approved": Scenario(weight=20, expectation=Expectation.RUNS, run=Scenarios.run_approved),
    "approved by two": Scenario(
        weight=5, expectation=Expectation.RUNS, run=Scenarios.run_approved_by_two, tool="asked.pair"
    ),
    "one of two": Scenario(weight=2, expectation=Expectation.NEVER, run=Scenarios.run_one_of_two, tool="asked.pair"),
    "broken glass": Scenario(weight=2, expectation=Expectation.RUNS, run=Scenarios.run_break_glass),
    "glass broken alone": Scenario(weight=2, expectation=Expectation.NEVER, run=Scenarios.run_break_glass_alone),
    "denied": Scenario(weight=8, expectation=Expectation.NEVER, run=Scenarios.run_denied),
    "undecided": Scenario(
        weight=5,
        expectation=Expectation.NEVER,
        run=Scenarios.run_undecided,
        reason=NoRunReason.EXPIRED,
        has_short_deadline=True,
    ),
    "late": Scenario(
        weight=6,
        expectation=Expectation.NEVER,
        run=Scenarios.run_late_decision,
        reason=NoRunReason.EXPIRED,
        has_short_deadline=True,
    ),
    "in haste": Scenario(
        weight=4, expectation=Expectation.EITHER, run=Scenarios.run_near_deadline, has_short_deadline=True
    ),
    "expired in the dark": Scenario(
        weight=4,
        expectation=Expectation.NEVER,
        run=Scenarios.run_expired_in_outage,
        reason=NoRunReason.EXPIRED,
        has_short_deadline=True,
    ),
    "yes and yes at once": Scenario(weight=5, expectation=Expectation.RUNS, run=Scenarios.run_two_approvals),
    "yes and no at once": Scenario(weight=5, expectation=Expectation.EITHER, run=Scenarios.run_approval_and_denial),
    "other arguments": Scenario(weight=3, expectation=Expectation.RUNS, run=Scenarios.run_other_arguments),
    "newer version": Scenario(
        weight=2, expectation=Expectation.RUNS, run=Scenarios.run_newer_version, has_own_tool=True
    ),
    "seen again the same": Scenario(
        weight=3, expectation=Expectation.RUNS, run=Scenarios.run_unchanged_preview, tool="asked.wipe"
    ),
    "would do something else": Scenario(
        weight=4,
        expectation=Expectation.NEVER,
        run=Scenarios.run_changed_preview,
        tool="asked.wipe",
        reason=NoRunReason.CHANGED,
    ),
    **_build_change_scenarios(Scenarios.run_change_before, 2, "before"),
    **_build_change_scenarios(Scenarios.run_change_after, 2, "after"),
    **{
        name: kind
        for name, kind in _build_change_scenarios(
            Scenarios.run_change_meanwhile, 2, "meanwhile", expectation=Expectation.EITHER
        ).items()
        if not name.startswith("tampered")
    },
}
