"""The cost in an envelope is what the call was charged."""

from pathlib import Path

import pytest

from deputize.core.errors import ToolFailed, UpstreamRateLimited
from tests.support.gateway_lab import parse_body
from tests.support.limited_lab import failures, make_rule, open_limited_lab, prices

pytestmark = pytest.mark.requirement("CON-5")


@pytest.mark.parametrize(
    ("tool", "price", "failure", "charged"),
    [
        ("pay", None, None, 1.0),
        ("pay", 0.25, None, 0.25),
        ("pay", 0.0, None, 0.0),
        ("pay", -3.0, None, 0.0),
        ("pay", None, ToolFailed("no"), 1.0),
        ("pay", None, UpstreamRateLimited("later"), 0.0),
        ("metered_look", None, None, 0.0),
        ("metered_look", 0.5, None, 0.5),
    ],
)
async def test_a_result_says_what_was_charged(
    tool: str, price: float | None, failure: Exception | None, charged: float, fresh_database: str, tmp_path: Path
) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("budget", 100, "money")) as lab:
        prices["cost"] = price
        failures.pop("cost", None)
        if failure is not None:
            failures["cost"] = failure
        try:
            envelope = parse_body(await lab.call(tool, "cost"))
        finally:
            failures.pop("cost", None)
        assert envelope["execution"]["cost"] == charged
        caller = await lab.make_caller()
        assert lab.runtime.limits.get_session_cost(caller, caller.session) == round(charged * 1_000_000)
