"""`deputize events status` tells how far each sink has got, from the database alone."""

import asyncio
import json
from pathlib import Path

import asyncpg
import pytest

from deputize.core.clock import Clock
from tests.acceptance.cli.cli_process import run_deputize
from tests.integration.store.sample_rows import make_tenants

pytestmark = pytest.mark.requirement("GOV-5")
SETTINGS = """
[[events.sinks]]
name = "bus"
kind = "nats"
url = "nats://user:s3cret@127.0.0.1:4222"
tenants = ["ac*"]

[[events.sinks]]
name = "new"
kind = "webhook"
url = "https://receiver.example"
"""


async def fill_database(dsn: str) -> None:
    await make_tenants(dsn, "acme", "other")
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        """insert into deputize.event_sinks (name, started_at, sent_count, sent_at, failures, last_error, failed_at)
           values ('bus', now(), 3, now(), 2, 'NATS at 127.0.0.1: no answer in time', now()),
                  ('old', now(), 9, now(), 0, null, null);
           insert into deputize.event_positions (tenant, sink, next_index) values ('acme', 'bus', 1)"""
    )
    clock = Clock(epoch_ms=lambda: Clock().epoch_ms() - 60_000)
    for tenant, count in (("acme", 3), ("other", 5)):
        for number in range(count):
            await connection.execute(
                "insert into deputize.log_leaves (tenant, leaf_index, entry_id, hash) values ($1, $2, $3, sha256('l'))",
                tenant, number, clock.new_id(),
            )  # fmt: skip
    await connection.close()


def test_sent_waiting_and_failing_sinks_are_told_apart(fresh_database: str, tmp_path: Path) -> None:
    asyncio.run(fill_database(fresh_database))
    (tmp_path / "deputize.toml").write_text(SETTINGS)
    env = {"DEPUTIZE_DATABASE__URL": fresh_database, "PATH": "/usr/bin:/bin"}
    done = run_deputize("events", "status", "--json", folder=tmp_path, env=env)
    assert done.code == 0, done.err
    bus, new, old = json.loads(done.out)["sinks"]
    assert (bus["name"], bus["state"], bus["sent"], bus["waiting"], bus["failures"]) == ("bus", "failing", 3, 2, 2)
    assert 60 <= bus["lag_seconds"] < 600
    assert bus["last_error"] == "NATS at 127.0.0.1: no answer in time"
    assert (new["name"], new["state"], new["waiting"], new["lag_seconds"]) == ("new", "not started", 0, 0)
    assert (old["name"], old["state"], old["kind"]) == ("old", "not configured", None)
    shown = run_deputize("events", "status", folder=tmp_path, env=env)
    assert shown.code == 0
    assert "no answer in time" in shown.out
    assert "s3cret" not in done.out + done.err + shown.out + shown.err


def test_without_sinks_it_says_how_to_add_one(fresh_database: str, tmp_path: Path) -> None:
    (tmp_path / "deputize.toml").write_text("")
    env = {"DEPUTIZE_DATABASE__URL": fresh_database, "PATH": "/usr/bin:/bin"}
    done = run_deputize("events", "status", folder=tmp_path, env=env)
    assert (done.code, "[[events.sinks]]" in done.out) == (0, True)


def test_an_event_is_skipped_by_an_operator_only(fresh_database: str, tmp_path: Path) -> None:
    asyncio.run(fill_database(fresh_database))
    (tmp_path / "deputize.toml").write_text(SETTINGS)
    env = {"DEPUTIZE_DATABASE__URL": fresh_database, "PATH": "/usr/bin:/bin"}
    event = ("--tenant", "acme", "--event", Clock().new_id())
    done = run_deputize("events", "skip", "bus", *event, folder=tmp_path, env=env)
    assert done.code != 0
    assert "Who confirms it?" in done.out + done.err
