"""Run any statement in the read-only transaction, as servers do that trust the database to refuse what it should."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from deputize.tools.sql import reading
from deputize.tools.sql.statements import Access, Statement


@contextmanager
def unparsed() -> Iterator[None]:
    def admit(sql: str, access: Access) -> Statement:
        return Statement(text=sql, is_explain=sql.startswith("explain"), attributes=frozenset())

    with patch.object(reading, "admit_statement", admit):
        yield
