"""Runs that nobody seems to have, or that one worker cannot read, find a worker all the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deputize.core.clock import Clock
from deputize.core.definition import Told
from deputize.lifecycle.carried import Carried, Desk
from deputize.lifecycle.resume import NotNow, waiting
from deputize.store.keys import MasterKey
from tests.integration.lifecycle.lab import open_lab, until
from tests.integration.lifecycle.tools import effects_of
from tests.integration.runs.test_carried import begun, is_dead, run, working

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]


async def test_what_a_worker_was_handed_after_it_was_buried_is_found_when_it_dies(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as buried:
        call = await run(buried, "note", "orphaned", "k")
        # It was away, so others took over what it had and struck it off; it came back, got this, and was killed.
        await buried.db.execute(
            "update dbos.workflow_status set status = 'PENDING', executor_id = $1", buried.rooms.lease.boot
        )
        await is_dead(buried, buried)
        async with working(fresh_database, tmp_path) as (lab, _):
            await lab.until_state(call, "succeeded")
            assert len(effects_of("orphaned")) == 1


async def test_a_run_sealed_with_a_newer_key_than_its_worker_knows_is_carried(
    fresh_database: str, tmp_path: Path
) -> None:
    async with working(fresh_database, tmp_path) as (lab, _), open_lab(fresh_database, tmp_path) as other:
        assert lab.rooms.keys.ready("dev") is not None
        master = MasterKey.read(tmp_path / "master.key")
        wrapped = master.wrap("dev", 2, Clock().random_bytes(32), Clock())
        await lab.db.execute(
            "insert into deputize.tenant_keys (tenant, version, wrapped) values ('dev', 2, $1)", wrapped
        )
        assert (await other.rooms.keys.load(other.rooms.store, "dev")).newest == 2
        await lab.until_state(await run(other, "note", "newer-key", "k"), "succeeded")


async def test_a_worker_with_another_master_key_breaks_nothing_that_others_can_open(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deputize.lifecycle.resume._LATER", 0.05)
    async with working(fresh_database, tmp_path) as (lab, _), open_lab(fresh_database, tmp_path) as submitting:
        keys: Any = lab.rooms.keys
        own, keys._master = keys._master, MasterKey(material=Clock().random_bytes(32))
        keys.forget("dev")
        call = await run(submitting, "note", "foreign", "k")

        async def was_put_back() -> bool:
            return bool(await lab.db.fetchval("select handouts from deputize.runs where id = $1", call) > 2)

        await until(was_put_back)
        assert await lab.state(call) == "queued"
        keys._master = own
        await lab.until_state(call, "succeeded")


async def test_a_run_of_an_issuer_nobody_trusts_any_more_is_not_carried(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        call = await run(lab, "note", "struck-off", "k")
        settings = lab.rooms.settings
        struck_off = settings.identity.model_copy(update={"issuers": ()})
        rooms = replace(lab.rooms, settings=settings.model_copy(update={"identity": struck_off}))
        # Left to others first: they may know it already. If none does, the run ends.
        with pytest.raises(NotNow, match="does not trust") as refused:
            await waiting(rooms, "dev", call)
        assert refused.value.unable
        await lab.db.execute("update deputize.runs set unable_since = now() - interval '1 hour'")
        assert await waiting(rooms, "dev", call) is None
        assert (await lab.row(call))["error"] == "requires-setup"
        assert effects_of("struck-off") == []


async def test_a_look_that_fails_takes_no_words_of_any_run_with_it(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        desk, calls = Desk(lab.rooms), [await run(lab, "note", tag, tag) for tag in ("one", "two")]
        real = Carried.write
        begun_both = [await begun(lab, call) for call in calls]
        with desk.carrying(*begun_both[0]) as (_, one), desk.carrying(*begun_both[1]) as (_, two):

            async def write(carried: Carried, connection: Any) -> None:
                if carried is two:
                    raise OSError("lost")
                await real(carried, connection)

            for carried in (one, two):
                carried.tell(Told(partial=b'{"value": "part"}'))
            monkeypatch.setattr(Carried, "write", write)
            with pytest.raises(OSError, match="lost"):
                await desk.look()
            monkeypatch.undo()
            monkeypatch.setattr("deputize.lifecycle.carried.WRITE_SECONDS", 0.0)
            await desk.look()
            await desk.look()
        kept = await lab.db.fetch("select id, seq from deputize.progress order by id, seq")
        assert [(str(row["id"]), row["seq"]) for row in kept] == [(call, 1) for call in calls]
