"""A preview on a terminal: everything that counts is there, and nothing a tool wrote does anything else."""

from typing import Any

import pytest

from deputize.doors.cli.output import REFUSED, Stopped
from deputize.doors.cli.previewed import preview_lines, show_dry_run

pytestmark = pytest.mark.requirement("GOV-4")


def preview(**more: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "by": "tool", "changes": [], "resources": [], "preconditions": [], "impact": {}, "unknown": [], "problem": None,
    }  # fmt: skip
    return {**nothing, **more}


def envelope(behavior: str, **more: Any) -> dict[str, Any]:
    return {
        "tool": {"name": "crm.delete_user"},
        "would": {"behavior": behavior, "because": [], "asks": [], **more},
        "preview": preview(),
        "decision": {"rules": ["open"]},
        "call_id": "c1",
        "warnings": ["mind\x1b[31m this"],
    }


def test_what_would_change_is_told_line_by_line() -> None:
    shown = preview(
        changes=[
            {"resource": "users", "op": "delete", "scope": "7", "before": {"plan": "pro"}, "after": None, "count": 1},
            {"resource": "invoices", "op": "update", "scope": "*", "count": 14_000},
        ],
        resources=["users/7", "search index"],
        preconditions=[
            {"name": "no open orders", "holds": False, "detail": "two are open"},
            {"name": "exists", "holds": True, "detail": ""},
        ],
        impact={"money lost": 12.5},
    )
    assert list(preview_lines(shown)) == [
        "▶ delete users/7 (1)",
        '    before: {"plan": "pro"}',
        "    after: null",
        "▶ update invoices (14,000)",
        "touches search index",
        "✗ no open orders: two are open",
        "✓ exists",
        "money lost: 12.5",
    ]


def test_what_nobody_knows_is_said() -> None:
    change = {"resource": "users", "op": "delete", "scope": "7"}
    shown = preview(
        by="contract", changes=[change], resources=["users/7"], unknown=["count", "impact"], problem="it broke"
    )
    assert list(preview_lines(shown)) == [
        "the tool's own preview could not be had: it broke",
        "▶ delete users/7",
        "unknown: count, impact",
    ]
    assert list(preview_lines(preview())) == ["would change nothing"]
    assert list(preview_lines(preview(by="contract"))) == ["changes nothing"]


HOSTILE = "\x1b[2J\x1b[31mok\u202e\u2066\r\nfake line\x07\u200b"


def test_nothing_a_tool_wrote_moves_hides_or_pretends() -> None:
    change = {
        "resource": HOSTILE,
        "op": "delete",
        "scope": HOSTILE,
        "before": {HOSTILE: HOSTILE},
        "after": "x" * 50_000,
    }
    shown = preview(
        changes=[change] * 60,
        resources=[HOSTILE + str(n) for n in range(60)],
        preconditions=[{"name": HOSTILE, "holds": True, "detail": HOSTILE}],
        impact={HOSTILE: HOSTILE},
        problem=HOSTILE,
    )
    lines = list(preview_lines(shown))
    assert "and 10 more changes" in lines
    assert "and touches 10 more" in lines
    assert len(lines) < 300
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1000


def test_where_it_would_lead_is_the_first_line_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    show_dry_run(envelope("run"), json=False)
    ran = capsys.readouterr()
    assert ran.out.splitlines()[0] == "✓ crm.delete_user would run; nothing was done"
    assert "allowed by open · call c1" in ran.err
    assert "\x1b" not in ran.err
    ask = {"rule": "r", "where": "p.cedar:8", "reason": "Why", "groups": ["oncall", "leads"], "quorum": 2}
    show_dry_run(envelope("ask", asks=[ask]), json=False)
    asked = capsys.readouterr().out.splitlines()
    assert asked[:2] == [
        "✓ crm.delete_user would ask people first; nothing was done",
        "  asks 2 of oncall, then leads by r (p.cedar:8): Why",
    ]
    with pytest.raises(Stopped) as stopped:
        show_dry_run(envelope("refuse", because=["no open orders: two"]), json=False)
    assert stopped.value.code == REFUSED
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "✗ crm.delete_user would be refused: no open orders: two; nothing was done"
