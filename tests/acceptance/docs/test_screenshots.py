"""The pictures of the documentation can be taken again from the running product."""

from pathlib import Path

import pytest

from docs import screenshots, trace_picture
from tests.support.chromium import EXECUTABLE

pytestmark = pytest.mark.nightly

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed")
def test_the_pictures_are_taken_from_the_running_product(tmp_path: Path) -> None:
    for path in screenshots.write_screenshots(tmp_path):
        assert path.read_bytes().startswith(_PNG_SIGNATURE)
        assert (screenshots.IMAGES / path.name).stat().st_size <= screenshots.MAX_BYTES


@pytest.mark.requirement("OBS-1")
def test_the_picture_of_a_trace_is_drawn_from_the_running_product(tmp_path: Path) -> None:
    rows = trace_picture.order_spans(trace_picture.record_trace(tmp_path / "shop"))
    assert [(depth, span.name) for depth, span in rows] == [
        (0, "task"), (1, "deputize.call"), (2, "deputize.validate"), (2, "deputize.authorize"), (2, "deputize.run"),
        (3, "deputize.authorize"), (3, "deputize.execute"), (4, "deputize.attempt 1"), (5, "cancel_order"),
        (4, "deputize.attempt 2"), (5, "cancel_order"), (3, "deputize.verify"), (3, "deputize.reply"),
    ]  # fmt: skip
    assert all(span.name in trace_picture.PICTURE.read_text() for _, span in rows)
