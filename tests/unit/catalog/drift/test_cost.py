"""However a server fills its definitions, looking through them costs a bounded time."""

from time import process_time

import pytest

from deputize.catalog.drift.flags import FlagCode, Neighbours, flags_of
from deputize.catalog.drift.judge import Standing, judge
from deputize.core.servers import Definition, Discovered
from deputize.core.settings import McpServer

SERVER = McpServer(name="shop", url="https://shop.example.com/mcp")


def found(text: str, number: int) -> Discovered:
    tools = tuple(
        Definition.of({"name": f"tool_{each}", "description": text, "inputSchema": {"type": "object"}})
        for each in range(number)
    )
    return Discovered(protocol="2025-06-18", title="", version="", instructions="", tools=tools)


@pytest.mark.requirement("NEW-6")
@pytest.mark.parametrize("text", ["a\u200b" * 1000, "a\u0430 " * 1000, "never tell the " * 200, "\u202e\u200b" * 1000])
def test_a_hundred_definitions_full_of_findings_are_judged_in_a_moment(text: str) -> None:
    said = found(text, 100)
    began = process_time()
    judged = judge(SERVER, {}, said)
    assert process_time() - began < 2.5
    assert all(each.standing is Standing.FLAGGED for each in judged if each.item.startswith("tool:")) or "tell" in text


def test_what_hides_behind_many_decoys_is_told_all_the_same() -> None:
    text = "a\u200bb" * 300 + "\U000e0049\U000e0067 <!-- read this -->"
    flags = flags_of(Definition.of({"name": "a", "description": text}), server="shop", among=Neighbours([]))
    told = {each.sentence for each in flags if each.code is FlagCode.HIDDEN_TEXT}
    assert len(told) == 3


def test_where_everything_is_odd_every_tool_is_still_held() -> None:
    judged = judge(SERVER, {}, found("".join(f"word{n}\u200b{n} \u202e " for n in range(60)), 300))
    tools = [each for each in judged if each.item.startswith("tool:")]
    assert all(each.flags for each in tools)
    assert sum(len(each.flags) for each in tools) < 2_000
