"""A test of tools that makes cases of their schemas only, and none of their behaviours."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from deputize.testing import contract_test


@contextmanager
def open_tester() -> Iterator[None]:
    with patch.object(contract_test, "BEHAVIOURS", ()):
        yield
