"""`deputize tool show` prints every promise of a contract, and nothing for those it does not make."""

import pytest

from deputize.core.contract.contract import LATER_FIELDS
from deputize.interfaces.cli.render.contract import render_promises
from tests.support.contracts import make_contract
from tests.unit.core.contract.test_contract import REVISION_2

pytestmark = pytest.mark.requirement("CON-2")


def test_a_contract_without_promises_has_no_lines() -> None:
    assert list(render_promises(make_contract().model_dump(mode="json"))) == []


@pytest.mark.parametrize("field", sorted(set(LATER_FIELDS) - {"preview_rules"}))
def test_each_promise_has_a_line(field: str) -> None:
    contract = make_contract(**{field: REVISION_2[field]}).model_dump(mode="json")
    assert len(list(render_promises(contract))) == 1


def test_values_are_readable() -> None:
    contract = make_contract(
        objectives={"p99_seconds": 0.25, "availability": 0.999},
        behaviours=["deterministic"],
        native_ids={"function_calling": {"function_name": "get_user", "strict": True}},
    )
    assert list(render_promises(contract.model_dump(mode="json"))) == [
        "behaviours: deterministic",
        "objectives: p99_seconds 0.25, availability 0.999",
        "native ids: function_calling (function_name get_user, strict yes)",
    ]


def test_text_cannot_change_what_the_terminal_shows() -> None:
    [line] = render_promises({"recipient_argument": "to\x1b[2J" + "x" * 1000})
    assert "\x1b" not in line
    assert len(line) < 400
