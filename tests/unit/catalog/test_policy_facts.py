"""Test policy facts: which arguments policies may read, and which marks are rejected."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.importers import annotations
from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.catalog.policy_facts import PolicyFact, list_facts
from deputize.catalog.registration_rules import admit_contract
from deputize.core.contract.contract import LifecycleState
from deputize.core.errors import ToolNotAdmitted
from tests.support.contracts import make_contract, make_input_schema, make_snapshot, make_version

pytestmark = pytest.mark.requirement("GOV-2")

NUMBER: dict[str, Any] = {"type": "integer", "description": "How much", "examples": [3]}
WORDS: dict[str, Any] = {
    "type": "array", "items": {"type": "string"}, "description": "To whom", "examples": [["ana"]],
}  # fmt: skip


def mark_as_fact(part: dict[str, Any], mark: Any = True) -> dict[str, Any]:
    return {**part, "x-policy": mark}


def rejection_reasons(**properties: Any) -> list[tuple[str, str]]:
    try:
        admit_contract(make_contract(input_schema=make_input_schema(**properties), examples=[{}]))
    except ToolNotAdmitted as refused:
        return [(each["path"], each["reason"]) for each in refused.details["reasons"]]
    return []


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "Long"),
        ({"type": "string", "maxLength": 5}, "String"),
        ({"type": "string", "enum": ["a", "b"]}, "String"),
        ({"type": "boolean"}, "Bool"),
        ({"type": "array", "items": {"type": "string"}}, "Set<String>"),
        ({"type": ["integer", "null"]}, "Long"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "String"),
        ({"$ref": "#/$defs/amount"}, "Long"),
    ],
)
def test_types_of_rules_follow_from_types_of_arguments(schema: dict[str, Any], kind: str) -> None:
    whole = {**make_input_schema(x=mark_as_fact(schema)), "$defs": {"amount": {"type": "integer"}}}
    (fact,) = list_facts(make_contract(input_schema=whole))
    assert (fact.name, fact.argument, fact.type, fact.is_sensitive) == ("x", "x", kind, False)


def test_only_marked_arguments_are_exposed_under_their_given_name() -> None:
    schema = make_input_schema(
        sum=mark_as_fact(NUMBER, "amount"), to=mark_as_fact(WORDS), id=NUMBER, none=mark_as_fact(NUMBER, False)
    )
    tool = CompiledTool(make_contract(input_schema=schema))
    assert tool.read_facts({"sum": 3.0, "to": ["b", "a", "b"], "id": 7, "none": 1}) == {"amount": 3, "to": ("a", "b")}
    assert tool.read_facts({"sum": None}) == {}
    assert CompiledTool(make_contract()).read_facts({"id": 7}) == {}


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("x", {"x-sensitivity": "pii"}),
        ("x", {"x-sensitivity": "internal"}),
        ("x", {"writeOnly": True}),
        ("api_key", {}),
        ("x", {"x-policy": "password"}),
    ],
)
def test_a_sensitive_argument_is_judged_by_and_not_written_down(name: str, extra: dict[str, Any]) -> None:
    schema = make_input_schema(**{name: {"type": "string", "x-policy": True, **extra}})
    tool = CompiledTool(make_contract(input_schema=schema))
    assert tool.sensitive_facts == set(tool.read_facts({name: "v"}))
    assert len(tool.sensitive_facts) == 1


def test_a_list_of_sensitive_words_is_sensitive() -> None:
    items = {"type": "string", "x-sensitivity": "pii"}
    (fact,) = list_facts(
        make_contract(input_schema=make_input_schema(to={"type": "array", "items": items, "x-policy": True}))
    )
    assert fact == PolicyFact(name="to", argument="to", type="Set<String>", is_sensitive=True)


@pytest.mark.parametrize("mark", [1, "", "a-b", "__entity", "a b", ["x"], None])
def test_a_mark_that_names_nothing_is_refused(mark: Any) -> None:
    assert [path for path, _ in rejection_reasons(x=mark_as_fact(NUMBER, mark))] == [
        "/input_schema/properties/x/x-policy"
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "examples": [1.5]},
        {"type": "array", "items": {"type": "integer"}, "examples": [[1]]},
        {"type": "array", "items": {"type": ["string", "null"]}, "examples": [["a", None]]},
        {"type": ["integer", "string"], "examples": [1]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}], "examples": [1]},
        {"enum": [1, "a"]},
    ],
)
def test_a_value_that_rules_cannot_read_is_refused(schema: dict[str, Any]) -> None:
    found = rejection_reasons(x={"description": "Something", **mark_as_fact(schema)})
    assert found == [("/input_schema/properties/x/x-policy", "is on a property of a type that policies cannot read")]


def test_a_mark_below_the_top_is_refused() -> None:
    inside = {"type": "object", "description": "Order", "additionalProperties": False}
    found = rejection_reasons(order={**inside, "properties": {"sum": mark_as_fact(NUMBER)}})
    assert found == [("/input_schema/properties/order/properties/sum/x-policy", "is not on a top-level property")]


def test_two_arguments_cannot_be_one_fact() -> None:
    ((path, reason),) = rejection_reasons(a=mark_as_fact(NUMBER, "n"), b=mark_as_fact(NUMBER, "n"))
    assert (path, reason) == ("/input_schema/properties/b/x-policy", "uses the fact name n, which a already has")


def test_a_fact_has_one_type_in_the_whole_tenant() -> None:
    refund = make_contract(name="refund", input_schema=make_input_schema(amount=mark_as_fact(NUMBER)), examples=[{}])
    gone = make_contract(name="gone", input_schema=make_input_schema(to=mark_as_fact(WORDS)), examples=[{}])
    known = make_snapshot(
        make_version(refund), make_version(gone, LifecycleState.RETIRED), make_version(make_contract())
    )
    assert known.fact_types == {"amount": "Long"}
    other = make_contract(input_schema=make_input_schema(amount=mark_as_fact(WORDS)), examples=[{}])
    with pytest.raises(ToolNotAdmitted) as refused:
        admit_contract(other, find_fact=known.find_fact)
    (reason,) = refused.value.details["reasons"]
    assert reason["reason"] == "declares the fact amount as Set<String>, but crm.refund declares it as Long"
    admit_contract(
        make_contract(input_schema=make_input_schema(amount=mark_as_fact(NUMBER)), examples=[{}]),
        find_fact=known.find_fact,
    )


def test_where_a_call_is_silent_rules_hear_what_the_tool_goes_by() -> None:
    @tool(
        effects="destructive", namespace="shop", scopes=["shop:write"], examples=[{}],
        resources=[{"resource": "shop.till", "op": "update", "scope": "tills/{till}"}],
    )  # fmt: skip
    def refund(
        amount: Annotated[int, annotations.Fact(), Field(description="How much")] = 1_000_000,
        till: Annotated[str, Field(description="From where")] = "main",
        note: Annotated[str | None, annotations.Fact(), Field(description="Why")] = None,
    ) -> int:
        """Give money back."""
        return amount

    made = CompiledTool(getattr(refund, ATTRIBUTE).contract)
    assert made.read_facts(made.fill_defaults({})) == {"amount": 1_000_000}
    assert made.read_facts(made.fill_defaults({"amount": 3, "note": "x"})) == {"amount": 3, "note": "x"}
    assert [each.scope for each in made.resolve_writes(made.fill_defaults({}))] == ["tills/main"]
    given = {"id": 7}
    assert CompiledTool(make_contract()).fill_defaults(given) is given


def test_a_python_tool_marks_its_facts_beside_their_types() -> None:
    @tool(effects="read", namespace="shop", examples=[{"amount": 3, "to": "ana"}])
    def quote(
        amount: Annotated[int, annotations.Fact(), Field(description="How much")],
        to: Annotated[str | None, annotations.Fact("customer"), Field(description="For whom")] = None,
    ) -> int:
        """Say what something would cost."""
        return amount

    declared = getattr(quote, ATTRIBUTE).contract
    admit_contract(declared)
    assert [(fact.name, fact.type) for fact in list_facts(declared)] == [("amount", "Long"), ("customer", "String")]
