"""Random policies and random requests over a small set of names, so that they often match."""

from hypothesis import strategies as st

from deputize.core.decision import PolicyRequest, UndoneCall
from deputize.govern.policy.cedar import CompiledPolicies
from tests.support.policy_inputs import MOMENT, compile_policies, make_caller, make_question, make_tool

TOOLS = (
    make_tool("crm.refund", effects="destructive", external_service="stripe", tags=("money",)),
    make_tool("crm.get_user", provider="stripe"),
    make_tool("mail.send", effects="write", resources=({"resource": "mail.box", "op": "create"},)),
    make_tool("mail.read"),
    make_tool("mail.move", effects="write", resources=({"resource": "mail.box", "op": "update", "scope": "{id}"},)),
)

_PRINCIPALS = st.just("principal") | st.sampled_from(
    ['principal == User::"ana"', 'principal in Group::"ops"', "principal is User",
     'principal in User::"ana"', 'principal is User in Group::"ops"', 'principal in Tenant::"acme"',
     "principal is Agent"]
)  # fmt: skip
_ACTIONS = st.just("action") | st.sampled_from(
    ['action == Action::"call"', 'action in Action::"call"', 'action in [Action::"call", Action::"x"]',
     'action == Action::"x"', "action in []"]
)  # fmt: skip
_RESOURCES = st.sampled_from(
    ["resource", "resource is Tool", "resource is Server", 'resource == Tool::"crm.refund"', 'resource == Tool::"x.y"',
     'resource in Tool::"mail.send"', 'resource in Namespace::"crm"', 'resource in Server::"stripe"',
     'resource in Tenant::"acme"', 'resource in Tenant::"other"', 'resource is Tool in Namespace::"mail"',
     'resource is Tool in Tool::"mail.read"', 'resource == Namespace::"crm"', 'resource is Namespace in Tenant::"acme"']
)  # fmt: skip
_VALID_CONDITIONS = st.sampled_from(
    ["true", "false", 'context.trust == "trusted"', "principal.human", 'principal.scopes.contains("a")',
     "context.delegated", 'context has agent && context.agent == Agent::"bot"',
     'context.agents.contains(Agent::"boss")', 'context has session && context.session == "s1"',
     'context.environment == "production"', "context.time.hour < 12", 'context["time"].weekday == 1',
     "context.cost > 5", 'context.labels.contains("pii")', "context.facts has amount && context.facts.amount > 3",
     "context has facts.note", 'context has facts.to && context.facts.to.contains("ana")',
     'context.changes.contains(Resource::"mail.box")',
     'context.operations.contains("create")', 'context.scopes.contains("17")', 'resource.effects == "read"',
     'resource.tags.contains("money")', "resource has tags && resource.tags.isEmpty()",
     "context.facts == {amount: 4}", "{a: context}.a.delegated", '[context.trust].contains("trusted")',
     "if principal.human then context.cost == 0 else context.facts has note", "context has nothing",
     "context.sweeping", "!context.sweeping", "context has undoes && context.undoes.delegated",
     'context has undoes && context.undoes.agents.contains(Agent::"bot")', "context has undoes.tool",
     "context has facts", "{Value: context.facts}.Value has note", 'principal in [Group::"ops", Group::"x"]']
)  # fmt: skip
# Each of them fails for some requests: a missing attribute is read, types are mixed, integers overflow.
_FAILING_CONDITIONS = st.sampled_from(
    ['context.agent == Agent::"bot"', 'context.task == "t"', "context.facts.amount > 3",
     'context.facts.note like "a*"', "principal.nothing", "context.facts.amount + 9223372036854775807 > 0",
     "context.environment < 3", "resource in [context.agent]", "(context).facts.note == context.trust"]
)  # fmt: skip

_WANTS = st.sampled_from(
    ["", '@approvers("oncall, leads")', '@quorum("2")', '@approvers("security") @deadline("24h") @step_up("hwk")']
)


@st.composite
def _draw_rule(draw: st.DrawFn, number: int, conditions: st.SearchStrategy[str]) -> str:
    clauses = draw(st.lists(st.tuples(st.sampled_from(["when", "unless"]), conditions), max_size=2))
    asks = f'@decision("ask") {draw(_WANTS)} ' if draw(st.booleans()) else ""
    effect = draw(st.sampled_from(["permit", "permit", "forbid"]))
    said = " ".join(f"{kind} {{ {condition} }}" for kind, condition in clauses)
    scope = f"{draw(_PRINCIPALS)}, {draw(_ACTIONS)}, {draw(_RESOURCES)}"
    return f'@id("r{number}") {asks}{effect} ({scope}) {said};'


@st.composite
def draw_policies(draw: st.DrawFn, most: int = 8) -> CompiledPolicies:
    """Generate sets of rules. Few contain a rule that can fail, because such a rule decides everything by itself."""
    conditions = (
        st.one_of(_VALID_CONDITIONS, _FAILING_CONDITIONS) if draw(st.integers(0, 3)) == 0 else _VALID_CONDITIONS
    )
    count = draw(st.integers(1, most))
    return compile_policies("\n".join(draw(_draw_rule(number, conditions)) for number in range(count)))


_FACTS = st.fixed_dictionaries(
    {},
    optional={
        "amount": st.integers(-1, 5),
        "note": st.sampled_from(["ab", "b", "standard"]),
        "to": st.sampled_from([(), ("ana",), ("ana", "ben")]),
    },
)


@st.composite
def draw_question(draw: st.DrawFn) -> PolicyRequest:
    who = make_caller(
        draw(st.sampled_from(["ana", "ben"])),
        tenant=draw(st.sampled_from(["acme", "acme", "other"])),
        agents=draw(st.sampled_from([(), ("bot",), ("bot", "boss")])),
        agent_issuers=draw(st.sampled_from([(), ("https://login.example",)])),
        groups=draw(st.sampled_from([frozenset(), frozenset({"ops"})])),
        scopes=draw(st.sampled_from([frozenset(), frozenset({"a"})])),
        trust=draw(st.sampled_from(["untrusted", "standard", "trusted"])),
        human=draw(st.booleans()),
        task=draw(st.sampled_from([None, "t"])),
    )
    what = draw(st.sampled_from(TOOLS))
    scopes = draw(st.sampled_from(["17", "*"]))
    return make_question(
        who,
        what,
        environment=draw(st.sampled_from(["development", "staging", "production"])),
        facts=draw(_FACTS),
        session=draw(st.sampled_from([None, "s1", "s2"])),
        now_ms=MOMENT + draw(st.integers(0, 3)) * 21_600_000,
        side_effects=tuple((each.resource, each.op, scopes) for each in what.resources),
        cost_micros=draw(st.sampled_from([0, 9])),
        labels=draw(st.sampled_from([frozenset(), frozenset({"pii"})])),
        undone=draw(st.sampled_from([None, UndoneCall(tool="crm.refund", agents=("bot",))])),
    )
