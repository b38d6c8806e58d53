"""Sensitive arguments are never disclosed, whatever part of a contract marks them, in any shape."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract, SideEffect
from deputize.core.decision import PolicyRequest
from deputize.govern.policy.authzen import build_evaluation
from deputize.govern.policy.disclosure import list_disclosable_arguments
from tests.support.scripted_tools import TOOLS

CANARY = "canary-7f3a"
OPEN: dict[str, Any] = {"type": "string"}


def make_contract(properties: dict[str, Any], *resources: SideEffect, **schema: Any) -> Contract:
    whole = {"type": "object", "properties": properties, **schema}
    return TOOLS[0].contract.model_copy(update={"input_schema": whole, "resources": resources})


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        (OPEN, True),
        ({**OPEN, "x-sensitivity": "public"}, True),
        ({**OPEN, "x-sensitivity": "internal"}, False),
        ({**OPEN, "x-sensitivity": "pii"}, False),
        ({**OPEN, "writeOnly": True}, False),
        ({"anyOf": [OPEN, {**OPEN, "x-sensitivity": "secret"}]}, False),
        ({"type": "array", "items": {**OPEN, "x-sensitivity": "pii"}}, False),
        ({"type": "object", "properties": {"password": OPEN}}, False),
        ({"$ref": "#/$defs/Secret"}, False),
        ({"$ref": "#/$defs/Plain"}, True),
        ({"$ref": "#/$defs/Loop"}, True),
        ({"$ref": "https://elsewhere.example/schema"}, False),
        ({"$ref": "#/$defs/Missing"}, False),
    ],
)
def test_an_argument_without_sensitive_marks_is_sent(schema: dict[str, Any], is_open: bool) -> None:
    defs = {
        "Secret": {**OPEN, "x-sensitivity": "secret"},
        "Plain": OPEN,
        "Loop": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Loop"}}},
    }
    assert ("it" in list_disclosable_arguments(make_contract({"it": schema}, **{"$defs": defs}))) is is_open


def test_a_name_that_is_sensitive_in_one_branch_is_sensitive() -> None:
    both = make_contract({"it": OPEN}, allOf=[{"properties": {"it": {"x-sensitivity": "pii"}}}])
    assert list_disclosable_arguments(both) == frozenset()


def test_an_undescribed_argument_is_not_sent() -> None:
    loose = make_contract({}, additionalProperties=True)
    assert build_evaluation(_make_question(loose, {"it": CANARY}))["context"]["facts"] == {}


def test_a_scope_from_a_withheld_argument_is_sent_as_a_wildcard() -> None:
    effects = (
        SideEffect(resource="crm.users", op="update", scope="{email}"),
        SideEffect(resource="crm.notes", op="create", scope="{tag}"),
    )
    made = make_contract({"email": {**OPEN, "x-sensitivity": "pii"}, "tag": OPEN}, *effects)
    question = _make_question(
        made, {"email": CANARY, "tag": "t"}, ("crm.users", "update", CANARY), ("crm.notes", "create", "t")
    )
    assert [each["scope"] for each in build_evaluation(question)["context"]["touches"]] == ["*", "t"]


def test_facts_withheld_by_the_request_are_not_sent() -> None:
    made = make_contract({"it": OPEN, "other": OPEN}, SideEffect(resource="r", op="update", scope="{it}"))
    question = replace(
        _make_question(made, {"it": CANARY, "other": "o"}, ("r", "update", CANARY)), unrecorded_facts=frozenset({"it"})
    )
    told = build_evaluation(question)["context"]
    assert (told["facts"], told["withheld"], told["touches"][0]["scope"]) == ({"other": "o"}, ["it"], "*")


def test_a_fact_under_another_name_is_judged_by_the_argument_behind_it() -> None:
    made = make_contract(
        {
            "town": {**OPEN, "x-policy": "city"},
            "email": {**OPEN, "x-policy": "who", "x-sensitivity": "pii"},
            "phone": {**OPEN, "x-policy": "town", "x-sensitivity": "pii"},
        }
    )
    told = build_evaluation(_make_question(made, {"city": "Graz", "who": CANARY, "town": CANARY}))["context"]
    assert (told["facts"], told["withheld"]) == ({"city": "Graz"}, ["town", "who"])


_LEVELS = st.sampled_from([None, "public", "internal", "pii", "secret"])
_NAMES = st.sampled_from(["name", "email", "token", "note", "api_key", "kind"])


@pytest.mark.requirement("GOV-2")
@given(st.dictionaries(_NAMES, _LEVELS, min_size=1))
def test_no_sensitive_value_is_sent(levels: dict[str, str | None]) -> None:
    properties = {name: {**OPEN, **({"x-sensitivity": level} if level else {})} for name, level in levels.items()}
    effects = tuple(SideEffect(resource=f"r.{name}", op="update", scope=f"{{{name}}}") for name in levels)
    values = {name: f"{CANARY}-{name}" for name in levels}
    touches = tuple((f"r.{name}", "update", values[name]) for name in levels)
    sent = orjson.dumps(build_evaluation(_make_question(make_contract(properties, *effects), values, *touches)))

    hidden = {name for name, level in levels.items() if level not in (None, "public") or name in ("token", "api_key")}
    for name in levels:
        assert (values[name].encode() in sent) is (name not in hidden)


def _make_question(contract: Contract, facts: dict[str, Any], *touches: tuple[str, str, str]) -> PolicyRequest:
    return PolicyRequest(
        caller=Caller(tenant="acme", user="ana"), contract=contract, environment="production", session=None, now_ms=0,
        facts=facts, side_effects=touches,
    )  # fmt: skip
