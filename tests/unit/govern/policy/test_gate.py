"""The gate of the default set, as a function: of what a call does, how far it reaches, who makes it, and where.

reads                                                no question
reversible, by a trusted caller, not in production   no question
irreversible                                         a question
in production, of critical scope                     a question, whoever calls and whatever else permits
otherwise                                            what the tenant's own rules say; by default, a question
"""

from collections.abc import Sequence
from itertools import product

import pytest

from deputize.core.contract import Contract
from deputize.core.decision import Behavior, Environment
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.check import check
from deputize.govern.policy.decisions import Decisions
from deputize.govern.policy.force import TenantPolicy, Version, default_files
from deputize.govern.policy.records import question_from
from deputize.govern.policy.rules import PolicyFile
from tests.unit.govern.policy.asking import ANYTHING, caller, ids, question, tool

pytestmark = pytest.mark.requirement("GOV-3")

DEFAULT = CompiledPolicies(default_files())
OPEN = CompiledPolicies((PolicyFile(path="own.cedar", text=f'@id("own") {ANYTHING}'),))
# A tenant that permits everything beside the default set: what still asks asks whatever else permits.
PERMISSIVE = CompiledPolicies((*default_files(), PolicyFile(path="own.cedar", text=f'@id("own") {ANYTHING}')))

EFFECTS = ("read", "write", "destructive")
TRUSTS = ("untrusted", "standard", "trusted")
ENVIRONMENTS: tuple[Environment, ...] = ("development", "staging", "production")
# What a call touches, and whether that is critical: everything of a kind, part of it, or nobody knows what.
REACHES = {
    "one thing": ((("orders", "update", "7"),), (), False),
    "two things": ((("orders", "update", "7"), ("bills", "delete", "8")), (), False),
    "something new": ((("notes", "create", "*"),), (), False),
    "everything": ((("orders", "delete", "*"),), (), True),
    "all of a part": ((("orders", "update", "eu/*"),), (), True),
    "one thing and everything": ((("orders", "update", "7"), ("bills", "delete", "*")), (), True),
    "undeclared": ((), (), True),
    "one thing, marked": ((("orders", "update", "7"),), ("critical",), True),
    "something new, marked": ((("notes", "create", "*"),), ("money", "critical"), True),
}


def in_force(files: Sequence[PolicyFile]) -> TenantPolicy:
    decisions = Decisions(CompiledPolicies(files), key=b"k")
    return TenantPolicy(epoch=0, versions=[Version(0, "", lambda: decisions)])


def approval_required(effects: str, critical: bool, trust: str, environment: Environment) -> bool | None:
    """The function as it is written down; None where it leaves the answer to policy."""
    if effects == "read":
        return False
    if effects == "write" and trust == "trusted" and environment != "production":
        return False
    if effects == "destructive":
        return True
    if environment == "production" and critical:
        return True
    return None


@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize(("effects", "trust", "environment"), list(product(EFFECTS, TRUSTS, ENVIRONMENTS)))
def test_the_default_set_is_the_gate(effects: str, trust: str, environment: Environment, reach: str) -> None:
    touches, tags, critical = REACHES[reach]
    asked = question(
        caller(trust=trust), tool(effects=effects, tags=tags), environment=environment,
        touches=() if effects == "read" else touches,
    )  # fmt: skip

    verdict = DEFAULT.decide(asked)
    required = approval_required(effects, critical, trust, environment)
    assert verdict.behavior is (Behavior.ALLOW if required is False else Behavior.ASK)
    assert bool(verdict.demands) is (required is not False)

    # What a tenant permits beside it holds, except for what is critical in production.
    beside = PERMISSIVE.decide(asked)
    held = effects != "read" and environment == "production" and critical
    assert beside.behavior is (Behavior.ASK if held else Behavior.ALLOW)
    assert not held or ids(beside.rules) == ["critical-in-production-asks"]


@pytest.mark.parametrize(
    ("contract", "environment", "behavior"),
    [
        (tool(), "production", Behavior.ALLOW),
        (tool(effects="write", resources=({"resource": "a", "op": "update", "scope": "{id}"},)), "production", "ask"),
        (tool(effects="write", resources=({"resource": "a", "op": "update", "scope": "{id}"},)), "staging", "allow"),
        (tool(effects="write", resources=({"resource": "a", "op": "update"},)), "production", "ask"),
        (tool(effects="destructive"), "development", "ask"),
    ],
)
def test_what_the_default_set_answers_is_foreseen_without_arguments(
    contract: Contract, environment: Environment, behavior: str
) -> None:
    foreseen = in_force(default_files()).foresee(question(caller(trust="trusted"), contract, environment=environment))
    assert foreseen is not None
    assert foreseen.behavior == behavior


def test_an_answer_that_hangs_on_what_a_call_names_is_not_foreseen() -> None:
    text = f'@id("a") {ANYTHING.removesuffix(";")} unless {{ context.sweeping }};'
    named = tool(effects="write", resources=({"resource": "a", "op": "update", "scope": "{id}"},))
    policy = in_force((PolicyFile(path="p.cedar", text=text),))
    assert policy.foresee(question(what=named)) is None
    everything = policy.foresee(question(what=tool(effects="write", resources=({"resource": "a", "op": "delete"},))))
    assert everything is not None
    assert everything.behavior is Behavior.DENY


@pytest.mark.parametrize("effects", ["read", "write"])
def test_a_record_tells_whether_a_call_swept_where_its_rules_read_it_or_its_tool_says(effects: str) -> None:
    declared = ({"resource": "orders", "op": "update", "scope": "{id}"},) if effects == "write" else ()
    one = (("orders", "update", "7"),) if effects == "write" else ()
    asked = question(what=tool(effects=effects, resources=declared), touches=one)
    told = question_from(Decisions(DEFAULT, key=b"k").decide(asked).record)
    assert (told.asked.sweeping, "sweeping" in told.absent) == (False, False)
    silent = question_from(Decisions(OPEN, key=b"k").decide(asked).record)
    assert ("sweeping" in silent.absent) is (effects == "write")
    undeclared = question_from(Decisions(OPEN, key=b"k").decide(question(what=tool(effects="write"))).record)
    assert (undeclared.asked.sweeping, "sweeping" in undeclared.absent) == (True, False)


def test_answers_are_kept_apart_by_whether_a_call_sweeps() -> None:
    decisions = Decisions(PERMISSIVE, key=b"k")
    write = tool(effects="write", resources=({"resource": "orders", "op": "update", "scope": "{id}"},))
    answers = [
        decisions.decide(question(what=write, environment="production", touches=(("orders", "update", scope),)))
        for scope in ("7", "8", "*")
    ]
    assert [each.verdict.behavior for each in answers] == [Behavior.ALLOW, Behavior.ALLOW, Behavior.ASK]
    assert answers[0] is answers[1]


def test_the_default_set_may_take_force_and_every_rule_says_why() -> None:
    found = check(default_files(), {})
    assert (found.errors, found.warnings) == ((), ())
    assert all(rule.reason for rule in DEFAULT.rules)
