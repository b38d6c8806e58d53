"""What the proxy takes for a commit, and what not."""

import struct

import pytest

from proofs.kit.postgres_protocol import Framer, Message, Transactions
from proofs.kit.postgres_proxy import parse_address, replace_address

pytestmark = pytest.mark.nightly


def make_query(sql: str) -> Message:
    body = sql.encode() + b"\0"
    return Message(b"Q", b"Q" + struct.pack("!I", len(body) + 4) + body)


def test_a_lone_statement_commits_by_itself() -> None:
    assert Transactions().close_group(make_query("insert into t values (1)")) == ("insert into t values (1)",)


def test_an_open_transaction_commits_all_its_statements_at_commit() -> None:
    followed = Transactions()
    assert followed.close_group(make_query("begin")) == ()
    assert followed.close_group(make_query("insert into t values (1)")) == ()
    assert followed.close_group(make_query("  COMMIT;")) == ("begin", "insert into t values (1)", "  COMMIT;")
    assert followed.status == "idle"


def test_a_rollback_or_a_failed_transaction_commits_nothing() -> None:
    undone = Transactions()
    undone.close_group(make_query("begin"))
    assert undone.close_group(make_query("rollback")) == ()
    failed = Transactions()
    failed.close_group(make_query("begin"))
    failed.set_status("failed")
    assert failed.close_group(make_query("commit")) == ()


def test_going_back_to_a_savepoint_leaves_the_transaction_open() -> None:
    followed = Transactions()
    for sql in ("begin", "savepoint s", "rollback to s", "rollback to savepoint s"):
        assert followed.close_group(make_query(sql)) == ()
    assert followed.status == "open"


@pytest.mark.parametrize(
    "sql",
    [
        "create function f() returns void language plpgsql as $$ begin perform 1; end $$",
        "insert into t values ('a; commit')",
        "select 1 -- ; commit",
        "/* ; commit */ select 1",
    ],
)
def test_a_commit_inside_quotes_comments_or_a_function_body_is_none(sql: str) -> None:
    followed = Transactions()
    followed.close_group(make_query("begin"))
    assert followed.close_group(make_query(sql)) == ()


def test_frames_are_cut_wherever_the_stream_was_split() -> None:
    stream = make_query("select 1").raw + make_query("select 2").raw
    framer = Framer()
    cut = [message for byte in stream for message in framer.feed(bytes([byte]))]
    assert [message.raw for message in cut] == [make_query("select 1").raw, make_query("select 2").raw]


def test_a_dsn_keeps_all_but_its_address() -> None:
    dsn = "postgresql://u:p@%2Frun%2Fpg:5433/db?application_name=x"
    assert parse_address(dsn) == ("/run/pg", 5433)
    assert parse_address("postgresql:///db?host=/run/pg&port=5434") == ("/run/pg", 5434)
    assert replace_address(dsn, "127.0.0.1", 6000) == "postgresql://u:p@127.0.0.1:6000/db?application_name=x"
