"""What a running tool may say of itself, and that saying it is valid whether or not anybody listens."""

from typing import Any

import pytest

from deputize.core.contract.tools import MAX_MESSAGE_LENGTH, MAX_PARTIAL_BYTES, ToolContext, ToolProgress

pytestmark = pytest.mark.requirement("INV-4")


def _make_context(**more: Any) -> ToolContext:
    return ToolContext(
        call_id="c", tenant="dev", user="ana", agent="", session=None, key="c", attempt=1, seconds_left=1.0,
        traceparent=None, **more,
    )  # fmt: skip


def test_what_is_said_reaches_anyone_who_listens() -> None:
    heard: list[ToolProgress] = []
    context = _make_context(report_progress=heard.append)
    context.progress(1, 4, "a quarter")
    context.progress(message="x" * 1000)
    context.partial({"rows": [1]})
    assert heard[0] == ToolProgress(current=1, total=4, message="a quarter")
    assert len(heard[1].message) == MAX_MESSAGE_LENGTH
    assert heard[2].partial == b'{"rows":[1]}'


@pytest.mark.parametrize("heard", [None, [].append], ids=["nobody", "somebody"])
def test_what_cannot_be_said_is_refused_alike_anyone_who_listens(heard: Any) -> None:
    context = _make_context(report_progress=heard)
    context.progress()
    for done, total in ((float("nan"), None), (1, float("inf"))):
        with pytest.raises(ValueError, match="finite"):
            context.progress(done, total)
    with pytest.raises(ValueError, match="bytes"):
        context.partial("x" * MAX_PARTIAL_BYTES)
    with pytest.raises(TypeError):
        context.partial(object())


def test_a_part_is_what_it_was_when_it_was_said() -> None:
    heard: list[ToolProgress] = []
    rows = [1]
    _make_context(report_progress=heard.append).partial(rows)
    rows.append(2)
    assert heard[0].partial == b"[1]"


def test_a_tool_can_check_for_cancellation() -> None:
    assert not _make_context().is_cancel_requested
    assert _make_context(should_stop=lambda: True).is_cancel_requested
