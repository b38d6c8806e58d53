"""What a running tool may say of itself, and that saying it is valid whether or not anybody listens."""

from typing import Any

import pytest

from deputize.core.definition import LARGEST_PARTIAL, LONGEST_MESSAGE, Told, ToolContext

pytestmark = pytest.mark.requirement("INV-4")


def _context(**more: Any) -> ToolContext:
    return ToolContext(
        call_id="c", tenant="dev", user="ana", agent="", session=None, key="c", attempt=1, seconds_left=1.0,
        traceparent=None, **more,
    )  # fmt: skip


def test_what_is_said_reaches_whoever_listens() -> None:
    heard: list[Told] = []
    context = _context(tell=heard.append)
    context.progress(1, 4, "a quarter")
    context.progress(message="x" * 1000)
    context.partial({"rows": [1]})
    assert heard[0] == Told(done=1, total=4, message="a quarter")
    assert len(heard[1].message) == LONGEST_MESSAGE
    assert heard[2].partial == b'{"rows":[1]}'


@pytest.mark.parametrize("heard", [None, [].append], ids=["nobody", "somebody"])
def test_what_cannot_be_said_is_refused_alike_whoever_listens(heard: Any) -> None:
    context = _context(tell=heard)
    context.progress()
    for done, total in ((float("nan"), None), (1, float("inf"))):
        with pytest.raises(ValueError, match="finite"):
            context.progress(done, total)
    with pytest.raises(ValueError, match="bytes"):
        context.partial("x" * LARGEST_PARTIAL)
    with pytest.raises(TypeError):
        context.partial(object())


def test_a_part_is_what_it_was_when_it_was_said() -> None:
    heard: list[Told] = []
    rows = [1]
    _context(tell=heard.append).partial(rows)
    rows.append(2)
    assert heard[0].partial == b"[1]"


def test_a_tool_can_look_whether_it_is_to_stop() -> None:
    assert not _context().cancel_asked
    assert _context(stopping=lambda: True).cancel_asked
