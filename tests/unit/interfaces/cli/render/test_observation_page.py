"""Test the page of what was observed: it loads nothing, and nothing that agents choose becomes markup."""

from html.parser import HTMLParser
from typing import Any

import pytest

from deputize.interfaces.cli.render.observation import describe_period, summarize_shadow
from deputize.interfaces.cli.render.observation_page import render_page

pytestmark = pytest.mark.requirement("NEW-8")
HOSTILE = "</title></svg><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202e&"
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td",
    "strong", "figure", "figcaption", "svg", "rect", "text", "pre",
}  # fmt: skip


class TagCollector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}


def make_observation() -> dict[str, Any]:
    change = {
        "calls": 3, "tool": HOSTILE, "user": HOSTILE, "agents": [HOSTILE],
        "after": {"behavior": "ask", "rules": [{"id": HOSTILE, "where": ""}]},
    }  # fmt: skip
    backtest = {"calls": 3, "same": 0, "undetermined": 0, "unrecorded": 0, "changes": [change]}
    observed = {
        "since": "2026-11-10T00:00:00+00:00", "is_complete": True, "calls": 3, "first_ms": 1, "last_ms": 2,
        "uses": [
            {"user": HOSTILE, "agents": [HOSTILE], "system": HOSTILE, "tool": HOSTILE, "effects": "read",
             "inferred_effects": "read", "calls": 3, "failures": 0, "refusals": 0, "cost_micros": 0}
        ],
        "days": [{"day_ms": 1_794_182_400_000, "calls": 3}], "hours": [3, *[0] * 23], "unusual_count": 1,
        "unusual": [
            {"call_id": "1", "at_ms": 1_794_182_400_000, "user": HOSTILE, "agents": [], "tool": HOSTILE,
             "oddities": [{"kind": "rare-value", "reason": HOSTILE}]}
        ],
        "unusual_by_kind": {HOSTILE: 1},
        "secrets": [{"actor": HOSTILE, "tool": HOSTILE, "argument": HOSTILE, "calls": 1}],
        "policy": {"path": "observed.cedar", "calls": 3, "text": f"// {HOSTILE}\npermit"},
    }  # fmt: skip
    return {"observed": observed, "default": backtest, "draft": None, "written": backtest, "cost": {"currencies": []}}


def test_a_tool_that_no_system_has_is_of_no_system_and_a_long_line_of_the_policy_wraps() -> None:
    observation = make_observation()
    observation["observed"]["uses"].append({**observation["observed"]["uses"][0], "system": "", "tool": "hello.gret"})
    assert "1 system," in describe_period(observation["observed"])
    page = render_page(observation)
    assert "pre { white-space: pre-wrap;" in page


def test_no_text_of_an_agent_becomes_markup() -> None:
    page = render_page(make_observation())
    tags = TagCollector()
    tags.feed(page)
    assert tags.tags <= ALLOWED, tags.tags - ALLOWED
    assert not {name for name in tags.names if name.startswith("on") or name in ("src", "href")}
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_page_loads_nothing_and_forbids_scripts() -> None:
    page = render_page(make_observation())
    assert "default-src 'none'" in page
    assert "http://" not in page.replace("http-equiv", "")
    assert "https://" not in page
    assert page.count("<svg") == 4


def test_the_page_says_what_it_does_not_list() -> None:
    observation = make_observation()
    observed = observation["observed"]
    observed |= {"is_complete": False, "calls": 10, "unusual_count": 701, "unusual": observed["unusual"] * 500}
    observed["policy"]["text"] = "x" * 200_007
    observation["default"] = {**observation["default"], "changes": observation["default"]["changes"] * 502}
    page = render_page(observation)
    assert "only the newest are in this report" in page
    assert "And 7 calls of others." in page
    assert "And 201 more." in page
    assert "And 2 more." in page
    assert "And 7 more characters" in page


def test_a_whole_page_says_nothing_of_the_kind() -> None:
    page = render_page(make_observation())
    assert "And " not in page
    assert "only the newest" not in page


def test_the_policy_is_shown_as_it_would_be_written() -> None:
    observation = make_observation()
    observation["observed"]["policy"]["text"] = 'when { context.facts.a like "a\\*b\\\\c" }; // \u202e'
    page = render_page(observation)
    assert "like &quot;a\\*b\\\\c&quot;" in page
    assert "\u202e" not in page


def test_the_summary_counts_calls_that_would_be_allowed_or_were_not_recorded() -> None:
    changes = [{"calls": calls, "after": {"behavior": behavior}} for calls, behavior in ((4, "allow"), (2, "ask"))]
    result = {"calls": 17, "same": 10, "undetermined": 1, "unrecorded": 3, "changes": changes}
    summary = summarize_shadow(result)
    assert summary.startswith("10 as they were, 2 would ask, 0 would be denied, 4 would be allowed")
    assert summary.endswith(", 1 undetermined, 3 not recorded")
