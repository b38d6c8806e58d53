"""A checker that takes two references of the same name for the same schema."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import orjson

from deputize.catalog.compatibility.schema_parts import SchemaDocument

_get_text = SchemaDocument.get_text


def get_text_by_name(self: SchemaDocument, keyword: str | None, value: Any) -> bytes | None:
    return orjson.dumps(value) if keyword == "$ref" else _get_text(self, keyword, value)


@contextmanager
def open_checker() -> Iterator[None]:
    with patch.object(SchemaDocument, "get_text", get_text_by_name):
        yield
