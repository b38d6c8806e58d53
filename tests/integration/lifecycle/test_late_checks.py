"""A check that outlives its call ends as a check: it says nothing about a tool that never ran."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, wait_until
from tests.support.scripted_tools import BRIEF_WRITE_OPTIONS, TOOLS, Tag

pytestmark = pytest.mark.requirement("INV-7")
effects: list[str] = []
rollbacks: list[str] = []
checks_begun: list[str] = []
may_end = threading.Event()


def check_slowly(tag: str) -> Any:
    checks_begun.append(tag)
    may_end.wait()
    return {"value": tag}


def take_back(arguments: dict[str, Any], output: Any) -> None:
    rollbacks.append(arguments["tag"])


def make_tool(name: str, **checks: Any) -> PythonTool:
    def act(tag: Tag) -> dict[str, Any]:
        """Do something that can be taken back."""
        effects.append(tag)
        return {"value": tag}

    act.__qualname__ = act.__name__ = name
    declared = tool(
        effects="write", name=name, resources=["create lab.notes/{tag}"], rollback=take_back,
        external_service=name, predicates={"never": "/output/value == \"\""}, **checks, **BRIEF_WRITE_OPTIONS,
    )(act)  # fmt: skip
    found: PythonTool = getattr(declared, ATTRIBUTE)
    return found


CHECKED_TOOLS = [make_tool("slow_validate", validate=check_slowly), make_tool("slow_state", read_state=check_slowly)]


@pytest_asyncio.fixture
async def lab(fresh_database: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    for each in (effects, rollbacks, checks_begun):
        each.clear()
    may_end.clear()
    try:
        async with open_lab(fresh_database, tmp_path, tools=[*TOOLS, *CHECKED_TOOLS]) as lab:
            yield lab
    finally:
        may_end.set()


def count_slots(lab: GatewayLab, service: str) -> float | None:
    labels = {"service": service, "state": "running"}
    return lab.runtime.metrics.registry.get_sample_value("deputize_service_calls", labels)


@pytest.mark.parametrize("name", ["slow_validate", "slow_state"])
async def test_a_late_check_takes_nothing_back_and_keeps_its_slot(lab: GatewayLab, name: str) -> None:
    outcome = await lab.call(name, "late", key="late")
    assert checks_begun == ["late"], outcome.body
    assert error_slug(outcome) in ("tool-timeout", "tool-failed")
    # Its thread still runs, and is one of those that all services share.
    assert count_slots(lab, name) == 1
    assert not any(each.get_name() == f"late-{outcome.call_id}" for each in asyncio.all_tasks())
    may_end.set()

    async def has_slot_back() -> bool:
        return not count_slots(lab, name)

    await wait_until(has_slot_back)
    assert (effects, rollbacks) == ([], [])
