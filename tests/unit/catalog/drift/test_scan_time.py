"""Test that scanning definitions takes bounded time, whatever a server declares."""

from base64 import b64encode
from time import thread_time

import pytest

from deputize.catalog.drift.flags import DefinitionIndex, FlagCode, find_flags
from deputize.catalog.drift.verdicts import DriftStatus, judge_definitions
from deputize.core.mcp.servers import Definition, DiscoveredServer
from deputize.core.settings import McpServerSettings

SERVER = McpServerSettings(name="shop", url="https://shop.example.com/mcp")


def make_discovery(text: str, number: int) -> DiscoveredServer:
    tools = tuple(
        Definition.from_declaration({"name": f"tool_{each}", "description": text, "inputSchema": {"type": "object"}})
        for each in range(number)
    )
    return DiscoveredServer(protocol="2025-06-18", title="", version="", instructions="", tools=tools)


@pytest.mark.requirement("NEW-6")
@pytest.mark.parametrize("text", ["a\u200b" * 1000, "a\u0430 " * 1000, "never tell the " * 200, "\u202e\u200b" * 1000])
def test_a_hundred_definitions_full_of_findings_are_judged_in_a_moment(text: str) -> None:
    said = make_discovery(text, 100)
    began = thread_time()
    judged = judge_definitions(SERVER, {}, said)
    assert thread_time() - began < 5
    assert all(each.status is DriftStatus.FLAGGED for each in judged if each.item.startswith("tool:")) or "tell" in text


def test_a_flag_behind_many_decoys_is_still_found() -> None:
    text = "a\u200bb" * 300 + "\U000e0049\U000e0067 <!-- read this -->"
    flags = find_flags(
        Definition.from_declaration({"name": "a", "description": text}), server="shop", index=DefinitionIndex([])
    )
    told = {each.sentence for each in flags if each.code is FlagCode.HIDDEN_TEXT}
    assert len(told) == 3


def test_where_everything_is_odd_every_tool_is_still_held() -> None:
    judged = judge_definitions(SERVER, {}, make_discovery("".join(f"word{n}\u200b{n} \u202e " for n in range(60)), 300))
    tools = [each for each in judged if each.item.startswith("tool:")]
    assert all(each.flags for each in tools)
    assert sum(len(each.flags) for each in tools) < 2_000


@pytest.mark.parametrize("letter", [b"a", b"Z", b"a.", b"before any ", b"\x00"])
def test_a_quarter_of_a_megabyte_of_base64_is_scanned_in_linear_time(letter: bytes) -> None:
    blob = b64encode(letter * (5999 // len(letter))).decode().rstrip("=")[:7996]
    text = " ".join([blob] * 30)
    began = thread_time()
    judge_definitions(SERVER, {}, make_discovery(text, 1))
    assert thread_time() - began < 5
