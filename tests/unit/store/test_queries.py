"""Named statements are found by their names, and what is said about one stands with it."""

from pathlib import Path

import pytest

from deputize.store import queries

TOPICS = sorted(path.stem for path in Path(queries.__file__).parent.glob("*.sql"))


@pytest.mark.parametrize("topic", TOPICS)
def test_comments_stand_below_the_name_of_their_statement(topic: str) -> None:
    for name, statement in queries.load_statements(topic).items():
        # A comment above a name would be read as the end of the statement before it.
        assert statement.endswith(";"), f"{topic}.sql: the comment above the statement after {name} belongs below it"
