"""The default policies as a function of a call's effect, its scope, its caller and the environment.

read                                                 no approval
reversible, by a trusted caller, not in production   no approval
irreversible                                         approval
in production, critical or of unbounded scope        approval, for every caller, even if another rule permits
otherwise                                            as the tenant's own rules decide; by default, approval
"""

from collections.abc import Sequence
from itertools import product

import pytest

from deputize.core.contract.contract import Contract
from deputize.core.decision import Behavior, Environment
from deputize.govern.policy.active_policies import PolicyVersion, TenantPolicy, load_default_files
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.checks.validate import validate_policies
from deputize.govern.policy.decision_cache import DecisionCache
from deputize.govern.policy.decision_records import parse_replay
from deputize.govern.policy.policy_parser import PolicyFile
from tests.support.cases import check_each
from tests.support.policy_inputs import ANYTHING, make_caller, make_question, make_tool, rule_ids

pytestmark = pytest.mark.requirement("GOV-3")

DEFAULT = CompiledPolicies(load_default_files())
OPEN = CompiledPolicies((PolicyFile(path="own.cedar", text=f'@id("own") {ANYTHING}'),))
# A tenant that permits everything beside the default policies: approvals that remain cannot be overridden.
PERMISSIVE = CompiledPolicies((*load_default_files(), PolicyFile(path="own.cedar", text=f'@id("own") {ANYTHING}')))

EFFECTS = ("read", "write", "destructive")
TRUSTS = ("untrusted", "standard", "trusted")
ENVIRONMENTS: tuple[Environment, ...] = ("development", "staging", "production")
# What a call touches, and whether that is critical: a whole kind of resource, part of it, or unknown.
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


def compile_active(files: Sequence[PolicyFile]) -> TenantPolicy:
    decisions = DecisionCache(CompiledPolicies(files), key=b"k")
    return TenantPolicy(epoch=0, versions=[PolicyVersion(0, "", lambda: decisions)])


def is_approval_required(effects: str, critical: bool, trust: str, environment: Environment) -> bool | None:
    """Return the documented verdict, or None if the tenant's own policies decide."""
    if effects == "read":
        return False
    if effects == "write" and trust == "trusted" and environment != "production":
        return False
    if effects == "destructive":
        return True
    if environment == "production" and critical:
        return True
    return None


@check_each(
    "effects, trust, environment, reach",
    product(EFFECTS, TRUSTS, ENVIRONMENTS, REACHES),
    label=lambda *case: "{} by {} caller in {} of {}".format(*case),
)
def test_the_default_policies_follow_the_documented_function(
    effects: str, trust: str, environment: Environment, reach: str
) -> None:
    touches, tags, critical = REACHES[reach]
    asked = make_question(
        make_caller(trust=trust), make_tool(effects=effects, tags=tags), environment=environment,
        side_effects=() if effects == "read" else touches,
    )  # fmt: skip

    verdict = DEFAULT.decide(asked)
    required = is_approval_required(effects, critical, trust, environment)
    assert verdict.behavior is (Behavior.ALLOW if required is False else Behavior.ASK)
    assert bool(verdict.requirements) is (required is not False)

    # The tenant's own permits apply, except to critical calls in production.
    beside = PERMISSIVE.decide(asked)
    held = effects != "read" and environment == "production" and critical
    assert beside.behavior is (Behavior.ASK if held else Behavior.ALLOW)
    assert not held or rule_ids(beside.rules) == ["critical-in-production-asks"]


@pytest.mark.parametrize(
    ("contract", "environment", "behavior"),
    [
        (make_tool(), "production", Behavior.ALLOW),
        (
            make_tool(effects="write", resources=({"resource": "a", "op": "update", "scope": "{id}"},)),
            "production",
            "ask",
        ),
        (
            make_tool(effects="write", resources=({"resource": "a", "op": "update", "scope": "{id}"},)),
            "staging",
            "allow",
        ),
        (make_tool(effects="write", resources=({"resource": "a", "op": "update"},)), "production", "ask"),
        (make_tool(effects="destructive"), "development", "ask"),
    ],
)
def test_default_verdicts_are_predicted_without_arguments(
    contract: Contract, environment: Environment, behavior: str
) -> None:
    foreseen = compile_active(load_default_files()).predict_verdict(
        make_question(make_caller(trust="trusted"), contract, environment=environment)
    )
    assert foreseen is not None
    assert foreseen.behavior == behavior


def test_a_verdict_that_depends_on_arguments_is_not_predicted() -> None:
    text = f'@id("a") {ANYTHING.removesuffix(";")} unless {{ context.sweeping }};'
    named = make_tool(effects="write", resources=({"resource": "a", "op": "update", "scope": "{id}"},))
    policy = compile_active((PolicyFile(path="p.cedar", text=text),))
    assert policy.predict_verdict(make_question(what=named)) is None
    everything = policy.predict_verdict(
        make_question(what=make_tool(effects="write", resources=({"resource": "a", "op": "delete"},)))
    )
    assert everything is not None
    assert everything.behavior is Behavior.DENY


@pytest.mark.parametrize("effects", ["read", "write"])
def test_a_record_holds_or_implies_whether_the_scope_is_unbounded(effects: str) -> None:
    declared = ({"resource": "orders", "op": "update", "scope": "{id}"},) if effects == "write" else ()
    one = (("orders", "update", "7"),) if effects == "write" else ()
    asked = make_question(what=make_tool(effects=effects, resources=declared), side_effects=one)
    told = parse_replay(DecisionCache(DEFAULT, key=b"k").decide(asked).record)
    assert (told.query.is_sweeping, "sweeping" in told.absent) == (False, False)
    silent = parse_replay(DecisionCache(OPEN, key=b"k").decide(asked).record)
    assert ("sweeping" in silent.absent) is (effects == "write")
    undeclared = parse_replay(
        DecisionCache(OPEN, key=b"k").decide(make_question(what=make_tool(effects="write"))).record
    )
    assert (undeclared.query.is_sweeping, "sweeping" in undeclared.absent) == (True, False)


def test_bounded_and_unbounded_calls_have_separate_cache_entries() -> None:
    decisions = DecisionCache(PERMISSIVE, key=b"k")
    write = make_tool(effects="write", resources=({"resource": "orders", "op": "update", "scope": "{id}"},))
    answers = [
        decisions.decide(
            make_question(what=write, environment="production", side_effects=(("orders", "update", scope),))
        )
        for scope in ("7", "8", "*")
    ]
    assert [each.verdict.behavior for each in answers] == [Behavior.ALLOW, Behavior.ALLOW, Behavior.ASK]
    assert answers[0] is answers[1]


def test_the_default_policies_are_valid_and_every_rule_has_a_reason() -> None:
    found = validate_policies(load_default_files(), {})
    assert (found.errors, found.warnings) == ((), ())
    assert all(rule.reason for rule in DEFAULT.rules)
