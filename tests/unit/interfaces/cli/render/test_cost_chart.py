"""The chart of costs as people read it."""

from typing import Any

import pytest

from deputize.interfaces.cli.render.cost_chart import draw_bar, format_amount, print_costs

pytestmark = pytest.mark.requirement("OBS-4")
_NOTHING = {
    "compute": 0.0, "external_api": 0.0, "storage_io": 0.0, "network": 0.0, "token": 0.0, "human_review": 0.0,
}  # fmt: skip
_NO_USAGE = {
    "compute_seconds": 0.0, "storage_bytes": 0, "network_bytes": 0, "tokens": 0, "reviews": 0, "review_wait_seconds": 0,
}  # fmt: skip


def _describe(name: str, calls: int, *, usage: dict[str, Any] | None = None, **costs: float) -> dict[str, Any]:
    return {
        "name": name, "calls": calls, "cost": sum(costs.values()), "costs": _NOTHING | costs,
        "usage": _NO_USAGE | (usage or {}),
    }  # fmt: skip


def _render(capsys: pytest.CaptureFixture[str], by: str, *currencies: dict[str, Any], scope: str = "tenant") -> str:
    print_costs({"by": by, "since": "2030-01-01", "scope": scope, "currencies": list(currencies)})
    return "\n".join(" ".join(line.split()) for line in capsys.readouterr().out.splitlines())


def test_each_component_has_its_fill_and_the_highest_cost_fills_the_width() -> None:
    assert draw_bar(_NOTHING | {"compute": 10.0, "token": 5.0}, 15.0) == "█" * 20 + "▚" * 10
    assert draw_bar(_NOTHING | {"network": 0.001}, 15.0) == "░"
    assert draw_bar(_NOTHING, 15.0) == draw_bar(_NOTHING, 0.0) == ""


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0.00"), (1234.567, "1,234.57"), (0.5, "0.5"), (0.00012345, "0.000123")]
)
def test_small_amounts_keep_their_digits(amount: float, text: str) -> None:
    assert format_amount(amount) == text


def test_currencies_are_charts_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    usage = {"compute_seconds": 12.5, "tokens": 1_234_567, "network_bytes": 2_500_000, "reviews": 1}
    euros = _describe("", 3, compute=2.0, human_review=4.0) | {
        "currency": "EUR",
        "groups": [_describe("crm.find", 2, usage=usage, compute=2.0, human_review=4.0), _describe("", 1)],
    }
    others = _describe("", 1) | {"currency": None, "groups": [_describe("shop.free", 1)]}
    text = _render(capsys, "tool", euros, others)
    assert text.startswith("Costs since 2030-01-01 by tool, your tenant\n\n6.00 EUR for 3 calls\n")
    assert f"crm.find 6.00 {'█' * 10}{'◆' * 20} 2 12.5 s, 2.5 MB sent, 1,234,567 tokens, 1 review" in text
    assert "█ compute 2.00 ◆ human review 4.00" in text
    assert "0.00 units of contracts that name no currency for 1 call" in text
    assert "shop.free 0.00 1 -" in text


def test_days_are_in_order_and_calls_without_a_task_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    days = [_describe("2030-01-02", 1, compute=2.0), _describe("2030-01-01", 1, compute=1.0)]
    text = _render(capsys, "day", _describe("", 2, compute=3.0) | {"currency": "EUR", "groups": days})
    assert text.index("2030-01-01 1.00") < text.index("2030-01-02 2.00")
    text = _render(capsys, "task", _describe("", 1) | {"currency": "EUR", "groups": [_describe("", 1)]}, scope="own")
    assert "(no task)" in text
    assert "your own calls" in text


def test_without_calls_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert _render(capsys, "tool") == "No calls since 2030-01-01 (your tenant)."
