"""The pictures of the documentation can be taken again from the running product."""

from pathlib import Path

import pytest

from docs import screenshots
from tests.support.chromium import EXECUTABLE

pytestmark = pytest.mark.nightly

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.skipif(EXECUTABLE is None, reason="chromium is not installed")
def test_the_pictures_are_taken_from_the_running_product(tmp_path: Path) -> None:
    for path in screenshots.write_screenshots(tmp_path):
        assert path.read_bytes().startswith(_PNG_SIGNATURE)
        assert (screenshots.IMAGES / path.name).stat().st_size <= screenshots.MAX_BYTES
