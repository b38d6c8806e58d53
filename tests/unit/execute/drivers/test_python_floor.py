"""Test that a function never runs under a contract that says less than it declares."""

import pytest

from deputize.core.contract.tools import PythonTool
from deputize.core.errors import ToolNotAdmitted
from deputize.execute.drivers.python import PythonDriver
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-3")


def test_a_registered_contract_that_is_weaker_than_its_function_does_not_run() -> None:
    own = make_contract(effects="destructive", auth={"scopes": ["crm:write"]})
    made = PythonDriver([PythonTool(contract=own, run=print, is_async=False)])
    relabeled = make_contract(name="peek", auth={"scopes": ["crm:write"]})
    with pytest.raises(ToolNotAdmitted, match=r"says /effects read, but the function .* declares destructive") as error:
        made.find_tool(relabeled)
    assert error.value.nothing_happened
    same = make_contract(name="erase", version="3.0.0", effects="destructive", auth={"scopes": ["crm:write"]})
    assert made.find_tool(same).contract is own
    made.close()


def test_a_manifest_of_a_file_does_not_replace_what_its_function_declares() -> None:
    declared, lent = make_contract(effects="destructive"), make_contract(name="lent", version="2.0.0")
    made = PythonDriver([PythonTool(contract=lent, declaration=declared, run=print, is_async=False)])
    with pytest.raises(ToolNotAdmitted):
        made.find_tool(lent)
    made.close()


def test_files_may_declare_a_function_without_a_decorator_in_two_ways_and_others_must_be_as_strict_as_both() -> None:
    weak, strong = make_contract(), make_contract(name="drop", effects="destructive")
    made = PythonDriver([PythonTool(contract=each, run=print, is_async=False) for each in (weak, strong)])
    assert {made.find_tool(each).target for each in (weak, strong)} == {"tools.crm:get_user"}
    with pytest.raises(ToolNotAdmitted):
        made.find_tool(make_contract(name="third"))
    made.close()
