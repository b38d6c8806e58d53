"""Test admission: each of the eight conditions alone, all of them at once, and arbitrary input."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.catalog.policy_facts import find_no_fact
from deputize.catalog.registration_rules import admit_contract, check_conflicts, check_test_result, find_no_owner
from deputize.core.contract.contract import Contract
from deputize.core.errors import ToolNotAdmitted
from tests.support.contracts import INPUT, make_contract, make_input_schema

pytestmark = pytest.mark.requirement("CON-7")

USERS = [{"resource": "crm.users", "op": "update", "scope": "{id}"}]
DELETE_PREVIEW: dict[str, Any] = {"effects": "destructive", "resources": USERS, "preview": True}
VAULT: dict[str, Any] = {"scopes": ["crm:write"], "credential": "vault", "secret": "crm/key"}


def rejection_reasons(tool_versions: dict[str, str] | None = None, **changes: Any) -> list[tuple[str, str]]:
    try:
        admit_contract(make_contract(**changes), find_owner=(tool_versions or {}).get)
    except ToolNotAdmitted as refused:
        found = refused.details["reasons"]
        assert all(each["reason"] and each["fix"] for each in found)
        return [(each["conjunct"], each["path"]) for each in found]
    return []


def test_a_complete_contract_is_admitted() -> None:
    assert rejection_reasons() == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"output_schema": {"type": "strin"}}, ("schemas_valid", "/output_schema/type")),
        ({"error_schema": {"properties": 5}}, ("schemas_valid", "/error_schema/properties")),
        ({"predicates": [{"name": "p", "holds": {"minimum": "1"}}]}, ("schemas_valid", "/predicates/0/holds/minimum")),
        ({"predicates": [{"name": "p", "compare": ["/output/a = 1"]}]}, ("schemas_valid", "/predicates/0/compare/0")),
        (
            {"predicates": [{"name": "p", "compare": ["/change/rows == 1"]}]},
            ("schemas_valid", "/predicates/0/compare/0"),
        ),
        ({"predicates": [{"name": "p"}]}, ("schemas_valid", "/predicates/0/compare")),
        ({"version": "1.0.0-01"}, ("version_registered", "/version")),
        ({**DELETE_PREVIEW, "auth": {}}, ("auth_policy_defined", "/auth")),
        ({"auth": {"credential": "vault"}}, ("auth_policy_defined", "/auth/secret")),
        ({"auth": {"credential": "delegated"}}, ("auth_policy_defined", "/auth/audience")),
        ({"auth": {"secret": "crm/api-key"}}, ("auth_policy_defined", "/auth/secret")),
        ({"auth": {"credential": "none", "audience": "crm"}}, ("auth_policy_defined", "/auth/audience")),
        ({"timeout": {"timeout_class": "interactive", "seconds": 2}}, ("timeout_class_assigned", "/timeout/seconds")),
        ({"timeout": {"timeout_class": "async"}}, ("timeout_class_assigned", "/timeout/seconds")),
        ({"idempotency": {"key_argument": "key"}}, ("idempotency_specified", "/idempotency/key_argument")),
        ({"effects": "destructive", "preview": True}, ("mutation_class_labelled", "/resources")),
        ({**DELETE_PREVIEW, "preview": False}, ("mutation_class_labelled", "/preview")),
        ({"preview_rules": {}}, ("mutation_class_labelled", "/preview_rules")),
        (
            {**DELETE_PREVIEW, "auth": {"scopes": ["s"], "readonly_secret": "a"}},
            ("auth_policy_defined", "/auth/readonly_secret"),
        ),
        (
            {**DELETE_PREVIEW, "auth": {**VAULT, "readonly_secret": "crm/key"}},
            ("auth_policy_defined", "/auth/readonly_secret"),
        ),
        ({"auth": {**VAULT, "readonly_secret": "crm/low"}}, ("auth_policy_defined", "/auth/readonly_secret")),
        ({"effects": "write", "resources": USERS}, ("mutation_class_labelled", "/undo")),
        ({"resources": USERS}, ("mutation_class_labelled", "/resources")),
        ({"examples": []}, ("contract_tests_passing", "/examples")),
        ({"examples": [{"id": 7}, {"id": "7"}]}, ("contract_tests_passing", "/examples/1")),
    ],
)
def test_each_condition_is_judged(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    assert rejection_reasons(**changes) == [expected]


def test_a_refused_tool_hears_every_reason_at_once() -> None:
    found = rejection_reasons(
        version="1.0.0-01", effects="write", auth={}, timeout={"timeout_class": "async"}, examples=[],
        idempotency={"key_argument": "nothing"}, output_schema={"type": "strin"},
    )  # fmt: skip
    assert {conjunct for conjunct, _ in found} == {
        "schemas_valid", "version_registered", "auth_policy_defined", "timeout_class_assigned",
        "idempotency_specified", "mutation_class_labelled", "contract_tests_passing",
    }  # fmt: skip


def test_the_message_names_the_tool_the_first_reason_and_the_way_out() -> None:
    with pytest.raises(ToolNotAdmitted) as refused:
        admit_contract(make_contract(examples=[]))
    assert refused.value.message == (
        "crm.get_user 1.0.0 cannot be registered: /examples is missing; add the arguments of one call that works"
    )


GOOD = {"type": "string", "description": "A word", "examples": ["a"]}


@pytest.mark.requirement("CON-4")
@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "array"}, ""),
        ({"type": "object", "properties": {}}, ""),
        (make_input_schema(word={"type": "string", "examples": ["a"]}), "/properties/word"),
        (make_input_schema(word={"type": "string", "description": "A word"}), "/properties/word"),
        (make_input_schema(word={"description": "A word", "examples": ["a"]}), "/properties/word"),
        (make_input_schema(word={**GOOD, "x-sensitivity": "topsecret"}), "/properties/word/x-sensitivity"),
        (make_input_schema(word={**GOOD, "x-token-cost": -1}), "/properties/word/x-token-cost"),
        (make_input_schema(word={**GOOD, "format": "shoe-size"}), "/properties/word/format"),
        (make_input_schema(word={**GOOD, "$ref": "https://example.org/word"}), "/properties/word/$ref"),
        ({**make_input_schema(word={**GOOD, "x-internal": True}), "required": ["word"]}, "/properties/word"),
        (
            make_input_schema(inner={"description": "Inside", "type": "object", "properties": {"a": GOOD}}),
            "/properties/inner",
        ),
        ({**make_input_schema(word=GOOD), "$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema"),
        (make_input_schema(word={**GOOD, "pattern": "(?=a)"}), "/properties/word/pattern"),
        (make_input_schema(word={**GOOD, "$ref": "#/$defs/nothing"}), ""),
    ],
)
def test_a_schema_that_is_open_foreign_or_unexplained_is_refused(schema: dict[str, Any], path: str) -> None:
    found = rejection_reasons(input_schema=schema, examples=[{}] if "required" not in schema else [{"word": "a"}])
    assert ("schemas_valid", f"/input_schema{path}") in found


@pytest.mark.requirement("CON-4")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "boolean", "description": "On or off"},
        {"enum": ["a", "b"], "description": "One of two"},
        {"type": "integer", "default": 3, "description": "How many"},
        {"type": "object", "description": "Free", "x-open": True, "examples": [{}]},
        {"type": "object", "description": "A map", "additionalProperties": {"type": "integer"}, "examples": [{"a": 1}]},
        {"type": "array", "description": "Words", "items": {"enum": ["a"]}},
        {"anyOf": [{"enum": ["a"]}, {"type": "null"}], "description": "Maybe"},
        {"description": "Anything", "x-open": True, "examples": [1]},
        {"type": "string", "description": "Mail", "format": "email", "x-sensitivity": "pii", "examples": ["a@b.org"]},
    ],
)
def test_a_property_may_explain_itself_in_more_than_one_way(part: dict[str, Any]) -> None:
    assert rejection_reasons(input_schema=make_input_schema(part=part), examples=[{}]) == []


@pytest.mark.requirement("CON-4")
def test_examples_and_defaults_of_properties_must_fit_too() -> None:
    schema = make_input_schema(
        size={"type": "integer", "description": "How big", "default": "3"},
        word={"$ref": "#/$defs/word"},
    )
    schema["$defs"] = {"word": {**GOOD, "examples": [1]}}
    found = rejection_reasons(input_schema=schema, examples=[{}])
    assert ("contract_tests_passing", "/input_schema/properties/size/default") in found
    assert ("contract_tests_passing", "/input_schema/properties/word/examples/0") in found


def test_deep_schemas_are_refused_without_being_walked() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    assert ("schemas_valid", "/output_schema") in rejection_reasons(output_schema={"anyOf": [deep]})


@pytest.mark.requirement("CON-1")
def test_names_that_no_model_api_takes_or_that_belong_to_others_are_refused() -> None:
    long = "a" * 40
    assert ("version_registered", "/name") in rejection_reasons(namespace=long, name=long)
    assert ("version_registered", "/aliases/0") in rejection_reasons(
        aliases=["crm.find"], tool_versions={"crm.find": "crm.search"}
    )
    assert ("version_registered", "/name") in rejection_reasons(tool_versions={"crm.get_user": "crm.other"})
    assert (
        rejection_reasons(
            aliases=["crm.find"], tool_versions={"crm.find": "crm.get_user", "crm.get_user": "crm.get_user"}
        )
        == []
    )


@pytest.mark.requirement("INV-8")
def test_scopes_name_arguments_that_exist_and_may_be_written_down() -> None:
    schema = {**INPUT, "properties": {**INPUT["properties"], "mail": {**GOOD, "x-sensitivity": "pii"}}}
    scoped = [{"resource": "crm.users", "op": "delete", "scope": scope} for scope in ("{nobody}", "{mail}", "{id}")]
    found = rejection_reasons(resources=scoped, effects="destructive", preview=True, input_schema=schema)
    assert found == [("mutation_class_labelled", f"/resources/{place}/scope") for place in (0, 1)]


@pytest.mark.requirement("CON-2")
def test_dates_of_the_end_must_be_dates_in_order() -> None:
    assert rejection_reasons(life={"sunset_date": "soon"}) == [("version_registered", "/life/sunset_date")]
    dates = {"deprecation_date": "2031-01-01", "sunset_date": "2030-01-01"}
    assert rejection_reasons(life=dates) == [("version_registered", "/life/sunset_date")]


def test_a_contract_without_a_canonical_form_is_refused() -> None:
    assert ("schemas_valid", "") in rejection_reasons(annotations={"huge": 2**60})


KEY = {"key": {"type": "string", "description": "The key of the call", "examples": ["k"]}}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (None, "is not a callable tool"),
        (
            make_contract(input_schema=make_input_schema(**KEY), effects="destructive", resources=USERS),
            "has side effects",
        ),
        (make_contract(), "has no argument `key`"),
        (
            make_contract(input_schema={**INPUT, "properties": {**INPUT["properties"], **KEY}}),
            "requires more than",
        ),
        (
            make_contract(input_schema=make_input_schema(key={"type": "integer", "description": "No text"})),
            "has no argument `key`",
        ),
    ],
)
def test_a_status_must_be_a_read_that_takes_a_key(status: Contract | None, why: str) -> None:
    with pytest.raises(ToolNotAdmitted, match=why) as refused:
        admit_contract(make_contract(status="crm.plan_status"), find_contract=lambda _: status)
    assert {each["path"] for each in refused.value.details["reasons"]} == {"/status"}


def test_a_status_that_can_be_asked_is_admitted() -> None:
    asked = {
        "crm.plan_status": make_contract(
            input_schema={**make_input_schema(**KEY), "required": ["key"]}, examples=[{"key": "k"}]
        )
    }
    admit_contract(make_contract(status="crm.plan_status"), find_contract=asked.get)
    admit_contract(make_contract(status="crm.plan_status"))


keywords = st.sampled_from(
    ["type", "properties", "items", "$ref", "allOf", "anyOf", "enum", "required", "description", "examples", "default",
     "format", "x-sensitivity", "x-open", "x-internal", "additionalProperties", "$defs", "const", "pattern", "not"]
)  # fmt: skip
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["object", "string", "#", "#/$defs/a", "a", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords | st.just("a"), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(keywords, junk, max_size=6))
def test_any_nonsense_in_place_of_a_schema_is_refused_or_admitted_but_never_breaks(schema: dict[str, Any]) -> None:
    rejection_reasons(input_schema=schema, output_schema=schema)


def test_what_others_did_since_speaks_against_an_admitted_contract_as_it_would_have_before() -> None:
    made, taken = make_contract(), {make_contract().full_name: "crm.another"}
    check_conflicts(made, find_owner=find_no_owner, find_fact=find_no_fact, find_contract=find_no_owner)
    with pytest.raises(ToolNotAdmitted) as late:
        check_conflicts(made, find_owner=taken.get, find_fact=find_no_fact, find_contract=find_no_owner)
    with pytest.raises(ToolNotAdmitted) as before:
        admit_contract(made, find_owner=taken.get)
    assert late.value.details == before.value.details


def test_of_a_contract_itself_nothing_is_judged_again_beside_others() -> None:
    broken = make_contract(output_schema={"type": "strin"})
    assert rejection_reasons(output_schema={"type": "strin"})
    check_conflicts(broken, find_owner=find_no_owner, find_fact=find_no_fact, find_contract=find_no_owner)


@pytest.mark.requirement("CON-7")
def test_an_undo_must_be_a_tool_that_exists() -> None:
    resources = [{"resource": "crm.users", "op": "update"}]
    contract = make_contract(effects="write", undo="crm.restore", resources=resources)
    with pytest.raises(ToolNotAdmitted, match=r"crm\.restore is not a callable tool") as refused:
        admit_contract(contract, find_contract=lambda _: None)
    assert {each["path"] for each in refused.value.details["reasons"]} == {"/undo"}
    with pytest.raises(ToolNotAdmitted, match=r"crm\.restore is not a callable tool"):
        check_conflicts(contract, find_owner=find_no_owner, find_fact=find_no_fact, find_contract=lambda _: None)
    admit_contract(contract, find_contract={"crm.restore": make_contract(name="restore")}.get)
    # A tool may reverse itself.
    itself = make_contract(effects="write", undo=contract.full_name, resources=resources)
    admit_contract(itself, find_contract=lambda _: None)


@pytest.mark.requirement("QUA-1")
def test_the_newest_test_must_have_passed_and_be_fresh() -> None:
    contract = make_contract()
    check_test_result(contract, "passed", 60, 60)
    for verdict, age in ((None, 0), ("failed", 0), ("unchecked", 0), ("passed", 61)):
        with pytest.raises(ToolNotAdmitted) as refusal:
            check_test_result(contract, verdict, age, 60)
        (reason,) = refusal.value.details["reasons"]
        assert reason["conjunct"] == "contract_tests_passing"
        assert "deputize tool test" in reason["fix"]
