"""Test the first policy: it allows every ordinary call of a week, and asks about what was planted."""

from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from deputize.core.decision import Behavior
from deputize.govern.observation.observed_call import MAX_TEXT_LENGTH, ObservedCall
from deputize.govern.observation.report import build_report
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import PolicyQuery
from deputize.govern.policy.checks.validate import validate_policies
from deputize.govern.policy.policy_parser import PolicyFile
from proofs.observe.week import BEYOND_RULES, PLANTS, script_week
from tests.unit.govern.observation.test_oddities import CALLS, observe

pytestmark = pytest.mark.requirement("NEW-8")


def draft_policies(calls: list[ObservedCall]) -> CompiledPolicies:
    text = build_report(calls)["policy"]["text"]
    file = PolicyFile(path="policies/observed.cedar", text=text)
    types: dict[str, Any] = {}
    for call in calls:
        for name, value in call.facts.items():
            is_flag = isinstance(value, bool)
            types[name] = "Bool" if is_flag else {int: "Long", str: "String"}.get(type(value), "Set<String>")
    findings = validate_policies((file,), types, known_names={})
    assert not findings.errors, findings.errors
    return CompiledPolicies((file,))


def decide(policies: CompiledPolicies, call: ObservedCall) -> Behavior:
    caller = {
        "tenant": "dev", "user": call.user, "issuer": "i", "trust": "standard", "human": False, "groups": [],
        "agents": list(call.agents), "scopes": [], "task": None,
    }  # fmt: skip
    tool = {
        "name": call.tool, "namespace": call.system, "server": call.system, "version": "1.0.0",
        "effects": "destructive", "mutation_class": "write-irreversible", "kind": "mcp_tool", "provider": call.system,
        "tags": [], "permissions": [], "undoable": False, "previewable": False, "open_world": True,
        "requires_user_interaction": False, "behaviours": [], "authority_rank": 0, "changes": [], "operations": [],
    }  # fmt: skip
    query = PolicyQuery(
        caller=caller, tool=tool, environment="development", session=None, now_ms=call.at_ms, facts=call.facts
    )
    return policies.evaluate_query(query, may_take_long=True).behavior


def test_a_rule_of_one_call_says_so() -> None:
    call = observe(script_week(0, calls=CALLS, oddities=0))[0]
    assert '@reason("1 call like this was observed.")' in build_report([call])["policy"]["text"]


@pytest.mark.parametrize("seed", range(3))
def test_every_ordinary_call_is_allowed_and_every_planted_one_asks(seed: int) -> None:
    week = script_week(seed, calls=CALLS, oddities=12)
    calls = observe(week)
    policies = draft_policies(calls)
    decisions: dict[str, set[Behavior]] = {}
    for scripted, call in zip(week.calls, calls, strict=True):
        decisions.setdefault(scripted.kind, set()).add(decide(policies, call))
    assert decisions.pop("") == {Behavior.ALLOW}
    allowed = {kind for kind, behaviors in decisions.items() if Behavior.ASK not in behaviors}
    assert allowed <= BEYOND_RULES


@pytest.mark.parametrize("kind", sorted(PLANTS.keys() - BEYOND_RULES))
def test_each_kind_that_a_rule_can_see_asks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofs.observe.week.PLANTS", {kind: PLANTS[kind]})
    week = script_week(5, calls=CALLS, oddities=1)
    calls = observe(week)
    policies = draft_policies(calls)
    planted = [call for scripted, call in zip(week.calls, calls, strict=True) if scripted.kind]
    assert Behavior.ASK in {decide(policies, call) for call in planted}


def test_texts_of_callers_stay_texts_in_the_draft() -> None:
    week = script_week(2, calls=600, oddities=0)
    hostile = 'x" }; permit (principal, action, resource); // \n*'
    calls = [replace(call, user=hostile, agents=(hostile,)) for call in observe(week)]
    policies = draft_policies(calls)
    assert all(decide(policies, call) is Behavior.ALLOW for call in calls[:20])


def test_names_that_differ_only_in_signs_get_rules_of_their_own() -> None:
    week = script_week(2, calls=600, oddities=0)
    names = {"support": "a b", "billing": "a-b"}
    calls = [replace(call, agents=(names.get(call.actor, call.actor),)) for call in observe(week)]
    policies = draft_policies(calls)
    assert all(decide(policies, call) is Behavior.ALLOW for call in calls[:50])


def test_an_argument_whose_values_are_withheld_is_not_forbidden() -> None:
    week = script_week(2, calls=CALLS, oddities=0)
    calls = [replace(call, secret_facts=("pin_text",)) for call in observe(week)]
    policies = draft_policies(calls)
    decisions = {decide(policies, replace(call, facts={**call.facts, "pin_text": "1234"})) for call in calls[:100]}
    assert decisions == {Behavior.ALLOW}


def test_no_rule_is_written_from_a_text_of_which_only_the_beginning_is_known() -> None:
    week = script_week(2, calls=600, oddities=0)
    cut_text = "x" * MAX_TEXT_LENGTH
    calls = [
        replace(call, facts={**call.facts, "note_text": cut_text}, lengths={**call.lengths, "note_text": 300})
        for call in observe(week)
    ]
    draft = build_report(calls)["policy"]["text"]
    assert cut_text not in draft
    assert "// Calls with note_text ask" in draft


def list_reads() -> list[ObservedCall]:
    """List a hundred calls that read files."""
    calls = [call for call in observe(script_week(2, calls=CALLS, oddities=0)) if call.tool == "files.read_file"][:100]
    assert len(calls) == 100
    return calls


def draft_with_texts(texts: list[str]) -> tuple[CompiledPolicies, ObservedCall]:
    """Draft policies from a hundred calls with these texts as one argument; also return one of the calls."""
    calls = [
        replace(call, facts={"place_text": text}, lengths={})
        for call, text in zip(list_reads(), cycle(texts), strict=False)
    ]
    return draft_policies(calls), calls[0]


def decide_texts(texts: list[str], *tried_texts: str) -> list[bool]:
    """Tell which texts are allowed under the policies that were drafted from others."""
    policies, call = draft_with_texts(texts)
    decisions = [decide(policies, replace(call, facts={"place_text": each})) for each in tried_texts]
    return [decision is Behavior.ALLOW for decision in decisions]


@pytest.mark.parametrize(
    ("rare_text", "foreign_text"),
    [
        ("README.md", "/etc/hosts"),
        ("/x.txt", "/etc/hosts"),
        ("//x.txt", "//etc/hosts"),
        ("/./x.txt", "/./etc/hosts"),
        ("/srv/docs/../x.txt", "/etc/hosts"),
    ],
)
def test_a_path_without_a_folder_opens_no_other(rare_text: str, foreign_text: str) -> None:
    usual_texts = [f"/srv/docs/{number}.md" for number in range(96)]
    texts = [*usual_texts, *[rare_text] * 4]
    assert decide_texts(texts, "/srv/docs/new.md", rare_text, foreign_text) == [True, True, False]


@pytest.mark.parametrize("rare_text", ["file:///a/b", "https:///x", "localhost"])
def test_an_address_without_a_host_opens_no_other(rare_text: str) -> None:
    texts = [*[f"https://a.example/{number}" for number in range(96)], *[rare_text] * 4]
    tried_texts = ("https://a.example/new", rare_text, "file:///etc/passwd", "https:///y", "https://b.example/")
    assert decide_texts(texts, *tried_texts) == [True, True, False, False, False]


def test_a_text_without_a_domain_is_allowed_as_it_was() -> None:
    texts = [*[f"u{number}@a.example" for number in range(96)], *["root"] * 4]
    tried_texts = ("new@a.example", "root", "new@root", "u@b.example")
    assert decide_texts(texts, *tried_texts) == [True, True, False, False]


def test_a_list_of_addresses_in_one_text_is_not_allowed_by_its_last_domain() -> None:
    usual_texts = [f"u{number}@a.example" for number in range(96)]
    list_text = "x@b.example,y@a.example"
    tried_texts = ("new@a.example", "attacker@evil.example,bob@a.example", "attacker@evil.example bob@a.example")
    assert decide_texts(usual_texts, *tried_texts) == [True, False, False]
    tried_texts = (list_text, "attacker@evil.example,y@a.example", "new@a.example")
    assert decide_texts([*usual_texts, *[list_text] * 4], *tried_texts) == [True, False, True]


def test_of_many_paths_without_a_folder_the_rest_asks() -> None:
    texts = [f"/{number:02}.txt" for number in range(100)]
    assert decide_texts(texts, "/00.txt", "/99.txt", "/etc/hosts") == [True, False, False]


def test_paths_that_climb_are_allowed_as_they_were_and_no_others() -> None:
    texts = ["../shared/a.md", "../shared/b.md"]
    assert decide_texts(texts, *texts, "../../etc/hosts", "/etc/hosts") == [True, True, False, False]


@pytest.mark.parametrize(
    ("start", "foreign_text"),
    [("https://a.example/", "https://evil.example/"), ("/srv/docs/", "/home/a/x.md")],
)
def test_a_long_text_removes_no_limit(start: str, foreign_text: str) -> None:
    texts = [*[f"{start}{number}" for number in range(99)], (start + "x" * MAX_TEXT_LENGTH)[:MAX_TEXT_LENGTH]]
    tried_texts = (f"{start}new", f"{start}{'y' * 300}", foreign_text)
    assert decide_texts(texts, *tried_texts) == [True, True, False]


@pytest.mark.parametrize(
    ("start", "shorter_text"),
    [("https://a.example.", "https://a.example.evil/"), ("/srv/", "/srv/keys/x"), ("x@a.", "x@a.evil")],
)
def test_a_host_folder_or_domain_that_was_cut_opens_no_other(start: str, shorter_text: str) -> None:
    texts = [(start + "x" * MAX_TEXT_LENGTH)[:MAX_TEXT_LENGTH]]
    assert decide_texts(texts, texts[0] + "x", shorter_text) == [False, False]


def test_of_a_choice_with_a_long_text_the_short_ones_are_allowed() -> None:
    texts = ["a", "b", "x" * MAX_TEXT_LENGTH]
    assert decide_texts(texts, "a", "b", "c", "x" * 300) == [True, True, False, False]


def decide_lists(lists: list[tuple[str, ...]], *tried_lists: tuple[str, ...], length: int = 0) -> list[bool]:
    """Tell which lists are allowed under the policies that were drafted from others, some of them longer."""
    calls = [
        replace(call, facts={"item_list": value}, lengths={"item_list": length or len(value)})
        for call, value in zip(list_reads(), cycle(lists), strict=False)
    ]
    policies = draft_policies(calls)
    decisions = [decide(policies, replace(calls[0], facts={"item_list": each})) for each in tried_lists]
    return [decision is Behavior.ALLOW for decision in decisions]


def test_a_long_item_or_a_long_list_removes_no_limit() -> None:
    lists: list[tuple[str, ...]] = [("a", "b"), ("a", "x" * MAX_TEXT_LENGTH)]
    assert decide_lists(lists, ("a",), ("b", "a"), ("c",)) == [True, True, False]
    assert decide_lists([("a", "b")], ("a", "b"), ("a", "c"), length=120) == [True, False]
    assert decide_lists([("x" * MAX_TEXT_LENGTH,)], (), ("x" * 300,), ("c",)) == [True, False, False]
    assert decide_lists([()], (), ("c",), length=1) == [True, False]


@pytest.mark.parametrize("secret_text", ["/home/a/.ssh/id_rsa", ".env", ".ssh/config", "../.env", "/srv/docs/.env"])
def test_places_of_secrets_ask_even_where_calls_are_too_few_for_a_limit(secret_text: str) -> None:
    calls = [
        replace(call, facts={"place_text": f"/srv/docs/{number}.md"}, lengths={})
        for number, call in enumerate(list_reads()[:5])
    ]
    policies, call = draft_policies(calls), calls[0]
    assert decide(policies, replace(call, facts={"place_text": "/srv/docs/new.md"})) is Behavior.ALLOW
    assert decide(policies, replace(call, facts={"place_text": secret_text})) is Behavior.ASK


def test_places_of_secrets_ask_in_many_rare_folders_and_not_where_they_were_usual() -> None:
    texts = [f"/srv/{number}/x.md" for number in range(100)]
    assert decide_texts(texts, "/srv/new/x.md", "/srv/new/.env", ".env") == [True, False, False]
    texts = [".aws/config", "docs/a.md", "docs/b.md"]
    assert decide_texts(texts, ".aws/config", "docs/.ssh/x", ".ssh/x") == [True, False, False]


def test_a_list_that_was_always_empty_stays_empty() -> None:
    assert decide_lists([()], (), ("c",)) == [True, False]


@pytest.mark.parametrize(("count", "has_note"), [(50, False), (60, True)])
def test_the_draft_says_that_a_list_of_many_items_has_no_limit(count: int, has_note: bool) -> None:
    calls = [
        replace(call, facts={"item_list": (f"item {number % count}",)}, lengths={"item_list": 1})
        for number, call in enumerate(list_reads())
    ]
    assert ("// item_list has no limit" in build_report(calls)["policy"]["text"]) is has_note
    assert decide(draft_policies(calls), calls[0]) is Behavior.ALLOW


def test_a_chain_of_agents_is_allowed_only_with_the_agent_that_made_the_calls() -> None:
    calls = [replace(call, agents=("writer", "helper")) for call in list_reads()]
    policies = draft_policies(calls)
    decisions = [
        decide(policies, replace(calls[0], agents=each)) for each in (("writer", "helper"), ("helper", "writer"))
    ]
    assert decisions == [Behavior.ALLOW, Behavior.ASK]
