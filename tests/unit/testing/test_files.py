"""The files of a tool's tests: the author's plan, and the regressions."""

from pathlib import Path
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.testing.contract_cases import CaseKind, Expectation
from deputize.testing.plan import ContractTestPlan, fill_placeholders, load_plan
from deputize.testing.regressions import Regression, add_regressions, load_regressions


def make_regression(arguments: str = '{"a": 1}', **more: Any) -> Regression:
    fields = {"case": "valid:1", "expectation": Expectation.ANSWERED, "arguments_json": arguments, "found_in": "1.0.0"}
    return Regression.model_validate({**fields, **more})


def test_a_tool_without_a_plan_has_an_empty_one(tmp_path: Path) -> None:
    assert load_plan(tmp_path, "crm.get") == ContractTestPlan()


def test_a_plan_is_read_from_the_file_of_the_tool(tmp_path: Path) -> None:
    (tmp_path / "crm.get.yaml").write_text("values: {id: [7]}\nstate: {tool: crm.list, measure: /users}\n")
    plan = load_plan(tmp_path, "crm.get")
    assert plan.values == {"id": [7]}
    assert plan.state is not None
    assert (plan.state.tool, plan.state.measure) == ("crm.list", "/users")


@pytest.mark.parametrize(
    "text", ["value: {}", "state: {tool: nothing}", "a: [", "- 1", "state: {tool: a.b, measure: x}"]
)
def test_an_invalid_plan_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "crm.get.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"crm\.get\.yaml"):
        load_plan(tmp_path, "crm.get")


def test_a_placeholder_keeps_the_type_of_its_value() -> None:
    template = {"id": "{id}", "text": "user {id}: {result.name}", "list": ["{result.name}", 3]}
    filled = fill_placeholders(template, {"id": 7}, {"name": "Ana"})
    assert filled == {"id": 7, "text": "user 7: Ana", "list": ["Ana", 3]}


def test_a_regression_is_kept_once_and_becomes_a_case(tmp_path: Path) -> None:
    assert add_regressions(tmp_path / "new", "crm.get", [make_regression()]) is not None
    assert add_regressions(tmp_path / "new", "crm.get", [make_regression(case="valid:9")]) is None
    (kept,) = load_regressions(tmp_path / "new", "crm.get")
    case = kept.to_case()
    assert (case.kind, case.id, case.arguments_json) == (CaseKind.REGRESSION, "regression:valid:1", '{"a": 1}')


def test_nothing_is_written_without_failures(tmp_path: Path) -> None:
    assert add_regressions(tmp_path / "new", "crm.get", []) is None
    assert not (tmp_path / "new").exists()


def test_an_unreadable_file_of_regressions_is_an_error_and_not_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "crm.get.regressions.json").write_text("[{}]")
    with pytest.raises(ConfigError, match="restore it"):
        load_regressions(tmp_path, "crm.get")
