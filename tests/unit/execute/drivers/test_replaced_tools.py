"""Test what calls find while the functions of a project are replaced."""

import pytest

from deputize.core.contract.tools import PythonTool
from deputize.core.errors import ToolRequiresSetup
from deputize.execute.drivers.python import PythonDriver
from tests.support.contracts import make_contract


async def test_replaced_functions_serve_new_calls_and_calls_on_their_way_keep_their_contract() -> None:
    old_contract = make_contract()
    new_contract = old_contract.model_copy(update={"description": "Something else that it says about itself."})
    old, code_only, new = (
        PythonTool(contract=contract, run=lambda result=result: result, is_async=False)
        for contract, result in ((old_contract, 1), (old_contract, 2), (new_contract, 3))
    )
    driver = PythonDriver([old])
    began_with = driver.find_tool(old_contract)
    driver.replace_tools([code_only])
    assert (began_with, driver.find_tool(old_contract)) == (old, code_only)
    driver.replace_tools([new])
    assert driver.find_tool(new_contract) is new
    assert driver.find_tool(old_contract) is code_only
    driver.close()


async def test_a_removed_function_is_not_found_under_any_contract() -> None:
    contract = make_contract()
    driver = PythonDriver([PythonTool(contract=contract, run=lambda: 1, is_async=False)])
    driver.replace_tools([])
    with pytest.raises(ToolRequiresSetup):
        driver.find_tool(contract)
    driver.close()
