"""Facts: which arguments policies may read, and the marks that are refused."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from deputize.catalog.admission import admit
from deputize.catalog.compiled import CompiledTool
from deputize.catalog.exposed import Fact, exposed
from deputize.catalog.importers import marks
from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.core.contract import LifecycleState
from deputize.core.errors import NotAdmitted
from tests.unit.catalog.contracts import contract, input_with, snapshot_of, version_of

pytestmark = pytest.mark.requirement("GOV-2")

NUMBER: dict[str, Any] = {"type": "integer", "description": "How much", "examples": [3]}
WORDS: dict[str, Any] = {
    "type": "array", "items": {"type": "string"}, "description": "To whom", "examples": [["ana"]],
}  # fmt: skip


def marked(part: dict[str, Any], mark: Any = True) -> dict[str, Any]:
    return {**part, "x-policy": mark}


def told(**properties: Any) -> list[tuple[str, str]]:
    try:
        admit(contract(input_schema=input_with(**properties), examples=[{}]))
    except NotAdmitted as refused:
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
    whole = {**input_with(x=marked(schema)), "$defs": {"amount": {"type": "integer"}}}
    (fact,) = exposed(contract(input_schema=whole))
    assert (fact.name, fact.argument, fact.type, fact.sensitive) == ("x", "x", kind, False)


def test_only_what_is_marked_is_told_under_the_name_it_is_given() -> None:
    schema = input_with(sum=marked(NUMBER, "amount"), to=marked(WORDS), id=NUMBER, none=marked(NUMBER, False))
    tool = CompiledTool(contract(input_schema=schema))
    assert tool.facts({"sum": 3.0, "to": ["b", "a", "b"], "id": 7, "none": 1}) == {"amount": 3, "to": ("a", "b")}
    assert tool.facts({"sum": None}) == {}
    assert CompiledTool(contract()).facts({"id": 7}) == {}


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
    schema = input_with(**{name: {"type": "string", "x-policy": True, **extra}})
    tool = CompiledTool(contract(input_schema=schema))
    assert tool.withheld == set(tool.facts({name: "v"}))
    assert len(tool.withheld) == 1


def test_a_list_of_sensitive_words_is_sensitive() -> None:
    items = {"type": "string", "x-sensitivity": "pii"}
    (fact,) = exposed(contract(input_schema=input_with(to={"type": "array", "items": items, "x-policy": True})))
    assert fact == Fact(name="to", argument="to", type="Set<String>", sensitive=True)


@pytest.mark.parametrize("mark", [1, "", "a-b", "__entity", "a b", ["x"], None])
def test_a_mark_that_names_nothing_is_refused(mark: Any) -> None:
    assert [path for path, _ in told(x=marked(NUMBER, mark))] == ["/input_schema/properties/x/x-policy"]


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
    found = told(x={"description": "Something", **marked(schema)})
    assert found == [("/input_schema/properties/x/x-policy", "is on a value rules cannot read")]


def test_a_mark_below_the_top_is_refused() -> None:
    inside = {"type": "object", "description": "Order", "additionalProperties": False}
    found = told(order={**inside, "properties": {"sum": marked(NUMBER)}})
    assert found == [("/input_schema/properties/order/properties/sum/x-policy", "is not at the top of the input")]


def test_two_arguments_cannot_be_one_fact() -> None:
    ((path, reason),) = told(a=marked(NUMBER, "n"), b=marked(NUMBER, "n"))
    assert (path, reason) == ("/input_schema/properties/b/x-policy", "gives n the name that a has already")


def test_a_fact_has_one_type_in_the_whole_tenant() -> None:
    refund = contract(name="refund", input_schema=input_with(amount=marked(NUMBER)), examples=[{}])
    gone = contract(name="gone", input_schema=input_with(to=marked(WORDS)), examples=[{}])
    known = snapshot_of(version_of(refund), version_of(gone, LifecycleState.RETIRED), version_of(contract()))
    assert known.fact_types == {"amount": "Long"}
    other = contract(input_schema=input_with(amount=marked(WORDS)), examples=[{}])
    with pytest.raises(NotAdmitted) as refused:
        admit(other, facts=known.fact)
    (reason,) = refused.value.details["reasons"]
    assert reason["reason"] == "makes amount a Set<String>, and crm.refund makes it a Long"
    admit(contract(input_schema=input_with(amount=marked(NUMBER)), examples=[{}]), facts=known.fact)


def test_where_a_call_is_silent_rules_hear_what_the_tool_goes_by() -> None:
    @tool(
        effects="destructive", namespace="shop", scopes=["shop:write"], examples=[{}],
        resources=[{"resource": "shop.till", "op": "update", "scope": "tills/{till}"}],
    )  # fmt: skip
    def refund(
        amount: Annotated[int, marks.Fact(), Field(description="How much")] = 1_000_000,
        till: Annotated[str, Field(description="From where")] = "main",
        note: Annotated[str | None, marks.Fact(), Field(description="Why")] = None,
    ) -> int:
        """Give money back."""
        return amount

    made = CompiledTool(getattr(refund, ATTRIBUTE).contract)
    assert made.facts(made.filled({})) == {"amount": 1_000_000}
    assert made.facts(made.filled({"amount": 3, "note": "x"})) == {"amount": 3, "note": "x"}
    assert [each.scope for each in made.writes(made.filled({}))] == ["tills/main"]
    given = {"id": 7}
    assert CompiledTool(contract()).filled(given) is given


def test_a_python_tool_marks_its_facts_beside_their_types() -> None:
    @tool(effects="read", namespace="shop", examples=[{"amount": 3, "to": "ana"}])
    def quote(
        amount: Annotated[int, marks.Fact(), Field(description="How much")],
        to: Annotated[str | None, marks.Fact("customer"), Field(description="For whom")] = None,
    ) -> int:
        """Say what something would cost."""
        return amount

    declared = getattr(quote, ATTRIBUTE).contract
    admit(declared)
    assert [(fact.name, fact.type) for fact in exposed(declared)] == [("amount", "Long"), ("customer", "String")]
