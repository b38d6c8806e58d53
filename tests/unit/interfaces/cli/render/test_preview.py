"""A preview on a terminal: everything that counts is there, and nothing a tool wrote does anything else."""

from typing import Any

import pytest

from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit
from deputize.interfaces.cli.render.preview import render_preview, show_dry_run

pytestmark = pytest.mark.requirement("GOV-4")


def make_preview(**more: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "by": "tool", "changes": [], "resources": [], "preconditions": [], "impact": {}, "unknown": [], "problem": None,
    }  # fmt: skip
    return {**nothing, **more}


def make_envelope(behavior: str, **more: Any) -> dict[str, Any]:
    return {
        "tool": {"name": "crm.delete_user"},
        "would": {"behavior": behavior, "because": [], "approvals": [], **more},
        "preview": make_preview(),
        "decision": {"rules": ["open"]},
        "call_id": "c1",
        "warnings": ["mind\x1b[31m this"],
    }


def test_preview_changes_are_printed_line_by_line() -> None:
    shown = make_preview(
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
    assert list(render_preview(shown)) == [
        "▶ delete users/7 (1)",
        '    before: {"plan": "pro"}',
        "    after: null",
        "▶ update invoices (14,000)",
        "touches search index",
        "✗ no open orders: two are open",
        "✓ exists",
        "money lost: 12.5",
    ]


def test_unknown_parts_of_a_preview_are_named() -> None:
    change = {"resource": "users", "op": "delete", "scope": "7"}
    shown = make_preview(
        by="contract", changes=[change], resources=["users/7"], unknown=["count", "impact"], problem="it broke"
    )
    assert list(render_preview(shown)) == [
        "the tool's preview failed: it broke",
        "▶ delete users/7",
        "unknown: count, impact",
    ]
    assert list(render_preview(make_preview())) == ["no changes"]


HOSTILE = "\x1b[2J\x1b[31mok\u202e\u2066\r\nfake line\x07\u200b"


def test_nothing_a_tool_wrote_moves_hides_or_pretends() -> None:
    change = {
        "resource": HOSTILE,
        "op": "delete",
        "scope": HOSTILE,
        "before": {HOSTILE: HOSTILE},
        "after": "x" * 50_000,
    }
    shown = make_preview(
        changes=[change] * 60,
        resources=[HOSTILE + str(n) for n in range(60)],
        preconditions=[{"name": HOSTILE, "holds": True, "detail": HOSTILE}],
        impact={HOSTILE: HOSTILE, "diff": [HOSTILE] * 60},
        problem=HOSTILE,
    )
    lines = list(render_preview(shown))
    assert "and 10 more changes" in lines
    assert "and touches 10 more resources" in lines
    assert "    and 10 more lines" in lines
    assert len(lines) < 300
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1000


def test_where_it_would_lead_is_the_first_line_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    show_dry_run(make_envelope("run"), json=False)
    ran = capsys.readouterr()
    assert ran.out.splitlines()[0] == "✓ Dry run: crm.delete_user would run. Nothing was changed."
    assert "allowed by open · call c1" in ran.err
    assert "\x1b" not in ran.err
    ask = {"rule": "r", "where": "p.cedar:8", "reason": "Why", "groups": ["oncall", "leads"], "quorum": 2}
    show_dry_run(make_envelope("ask", approvals=[ask]), json=False)
    asked = capsys.readouterr().out.splitlines()
    assert asked[:2] == [
        "✓ Dry run: crm.delete_user would wait for approval. Nothing was changed.",
        "  approval by 2 of oncall, then leads: r (p.cedar:8): Why",
    ]
    with pytest.raises(CommandExit) as stopped:
        show_dry_run(make_envelope("refuse", because=["no open orders: two"]), json=False)
    assert stopped.value.code == EXIT_FAILED
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "✗ Dry run: crm.delete_user would be refused; not met: no open orders: two. Nothing was changed."
