"""A database that went back in time: every gateway stops, and goes on when a person confirmed it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest
from pydantic import SecretStr

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.recovery import RestoredDatabase, run_recovery
from deputize.store.restore_guard.lineage import WentBackError
from deputize.store.restore_guard.record_files import read_records
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support import shop_tools
from tests.support.restored_database import NEWEST_ENTRY, confirm_recovery, drop_connections, lose_newest_entry


def remember_in(folder: Path) -> Callable[[Settings], Settings]:
    """Give a gateway a folder for its records."""

    def change(settings: Settings) -> Settings:
        database = settings.database.model_copy(update={"lineage_folder": folder})
        return settings.model_copy(update={"database": database})

    return change


async def wait_for_readiness(gateway: HttpGateway, status: int) -> httpx2.Response:
    async with asyncio.timeout(90):
        while (answer := await gateway.http.get("/readyz")).status_code != status:  # noqa: ASYNC110 -- over HTTP
            await asyncio.sleep(0.05)
    return answer


@pytest.mark.requirement("INV-2")
async def test_a_database_that_lost_something_stops_the_gateway_until_a_person_confirms(
    fresh_database: str, tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage")) as gateway:
        done = await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, key="before")
        assert done.status_code == 200
        slow = asyncio.create_task(gateway.call("shop.slow_note", {"name": "lost"}, key="open"))
        await shop_tools.start_events.setdefault("lost", asyncio.Event()).wait()
        admin = gateway.token("ada", scopes=(ADMIN_SCOPE,))
        revocation = await gateway.post("/v1/revocations", {"kind": "agent", "value": "bot"}, token=admin)
        revoked_at = revocation.json()["epoch"]
        await lose_newest_entry(fresh_database)
        ready = await wait_for_readiness(gateway, 503)
        while "lineage" not in ready.json()["detail"]:
            ready = await gateway.http.get("/readyz")
        assert "deputize recover confirm" in ready.json()["detail"]
        for answer in (
            await gateway.call("shop.get_user", {"id": 1}),
            await gateway.call("shop.rename_user", {"id": 1, "name": "y"}, key="after"),
            await gateway.post("/v1/revocations", {"kind": "agent", "value": "other"}, token=admin),
        ):
            assert answer.status_code == 503
            assert "the database went back in time" in answer.text
        async with httpx2.AsyncClient(base_url=gateway.metrics_url, timeout=60) as http:
            assert "deputize_database_went_back 1.0" in (await http.get("/metrics")).text
        recovery = await confirm_recovery(gateway.settings)
        assert recovery is not None
        assert (recovery.number, recovery.unknown_calls) == (2, 1)
        await wait_for_readiness(gateway, 200)
        shop_tools.release_events["lost"].set()
        assert (await slow).json()["state"] == "unknown"
        connection = await asyncpg.connect(fresh_database)
        assert await connection.fetchval("select revocation from deputize.epochs where tenant = 'dev'") > revoked_at
        entry = await connection.fetchval(
            "select convert_from(entry, 'UTF8') from deputize.audit_entries "
            "where position('\"recover\"'::bytea in entry) > 0 limit 1"
        )
        assert recovery.lineage in entry
        await connection.close()
        await _check_unknown_keys(gateway)


async def _check_unknown_keys(gateway: HttpGateway) -> None:
    """Repeats of calls on record are answered; a new key needs the statement that it did not happen."""
    replay = await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, key="before")
    assert replay.status_code == 200
    for mode in ("sync", "async"):
        refusal = await gateway.call("shop.rename_user", {"id": 1, "name": "z"}, key=f"new-{mode}", mode=mode)
        assert refusal.status_code == 409
        assert refusal.json()["type"] == "urn:deputize:problem:restored"
    stated = await gateway.call("shop.rename_user", {"id": 1, "name": "z"}, key="new", did_not_happen=True)
    assert stated.status_code == 200
    again = await gateway.call("shop.rename_user", {"id": 1, "name": "z"}, key="new")
    assert again.json()["call_id"] == stated.json()["call_id"]
    assert (await gateway.call("shop.get_user", {"id": 1})).status_code == 200


async def test_a_gateway_without_records_takes_the_databases_word(fresh_database: str, tmp_path: Path) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage-a")) as first:
        assert (await first.call("shop.get_user", {"id": 1})).status_code == 200
    await lose_newest_entry(fresh_database)
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage-b")) as second:
        assert (await second.call("shop.get_user", {"id": 1}, token=second.token())).status_code == 200
        # The first one finds out that something is missing, and all stop.
        with pytest.raises(WentBackError, match="the database went back in time: it lacks the audit entry"):
            async with open_gateway(first.settings, development=True):
                raise AssertionError("a gateway on a database that went back must not open")
        await wait_for_readiness(second, 503)
        with pytest.raises(WentBackError):
            async with open_gateway(remember_in(tmp_path / "lineage-c")(second.settings), development=True):
                raise AssertionError("the database's own word counts for new machines")


async def test_connections_that_break_are_no_alarm(fresh_database: str, tmp_path: Path) -> None:
    folder = tmp_path / "lineage"
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(folder)) as gateway:
        assert (await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, key="one")).status_code == 200
        connection = await asyncpg.connect(fresh_database)
        for _ in range(3):
            await drop_connections(connection)
            await wait_for_readiness(gateway, 200)
            async with asyncio.timeout(90):
                while (await gateway.call("shop.get_user", {"id": 1})).status_code != 200:  # noqa: ASYNC110 -- over HTTP
                    await asyncio.sleep(0.05)
        newest = await connection.fetchrow(NEWEST_ENTRY)
        assert newest is not None
        assert [(each.tenant, each.entry_id) for each in read_records(folder)] == [(newest[0], str(newest[1]))]
        assert await connection.fetchval("select count(*) from deputize.lineages where went_back_at is not null") == 0
        await connection.close()


async def test_the_address_of_another_database_does_not_stop_the_gateways_of_that_one(
    fresh_database: str, module_database: str, tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage")) as gateway:
        settings = gateway.settings
    connection = await asyncpg.connect(module_database)
    await connection.execute("update deputize.lineages set id = gen_random_uuid()")
    other = settings.database.model_copy(update={"url": SecretStr(module_database)})
    with pytest.raises(WentBackError, match="does not know its lineage"):
        async with open_gateway(settings.model_copy(update={"database": other}), development=True):
            raise AssertionError("not its database")
    with pytest.raises(ConfigError, match="records of this machine are about another database"):
        await confirm_recovery(settings.model_copy(update={"database": other}))
    assert await connection.fetchval("select count(*) from deputize.lineages where went_back_at is not null") == 0
    await connection.close()


async def test_a_second_restore_to_before_the_first_confirmation_can_be_confirmed(
    fresh_database: str, tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage")) as gateway:
        await lose_newest_entry(fresh_database)
        await wait_for_readiness(gateway, 503)
        first = await confirm_recovery(gateway.settings)
        assert first is not None
        await wait_for_readiness(gateway, 200)
        connection = await asyncpg.connect(fresh_database)
        # As after a restore to a time before the confirmation.
        await connection.execute("delete from deputize.lineages where number = 2")
        await drop_connections(connection)
        await wait_for_readiness(gateway, 503)
        second = await confirm_recovery(gateway.settings)
        assert second is not None
        await wait_for_readiness(gateway, 200)
        rows = await connection.fetch("select id::text, went_back_at is null from deputize.lineages order by number")
        assert [row[1] for row in rows] == [False, False, True]
        assert [row[0] for row in rows[1:]] == [first.lineage, second.lineage]
        await connection.close()


async def test_a_claim_whose_window_is_over_does_not_vouch_for_its_key(fresh_database: str, tmp_path: Path) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage")) as gateway:
        done = await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, key="old")
        assert done.status_code == 200
        connection = await asyncpg.connect(fresh_database)
        await connection.execute("update deputize.calls set window_ends = now() - interval '1 second'")
        await connection.close()
        await lose_newest_entry(fresh_database)
        await wait_for_readiness(gateway, 503)
        await confirm_recovery(gateway.settings)
        await wait_for_readiness(gateway, 200)
        repeat = await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, key="old")
        assert (repeat.status_code, repeat.json()["type"]) == (409, "urn:deputize:problem:restored")


@pytest.mark.requirement("GOV-1")
async def test_only_an_operator_who_has_just_signed_in_confirms(fresh_database: str, tmp_path: Path) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage")) as gateway:
        settings, operator_token = gateway.settings, gateway.other_token("olga")
        agent_token = gateway.token("ana", agent="bot")
    await lose_newest_entry(fresh_database)

    def identify(token: str) -> Callable[[RestoredDatabase], Awaitable[tuple[Caller | None, str]]]:
        return lambda restored: restored.identify_person(token)

    async def run(token: str) -> Any:
        return await asyncio.to_thread(run_recovery, settings, identify(token))

    person, rule = await run(operator_token)
    assert (person.user.rpartition(" ")[2], rule) == ("olga", "operator-sign-in")
    with pytest.raises(ConfigError, match="Who confirms it"):
        await run("")
    with pytest.raises(ConfigError, match="An agent, or a token that is delegated or limited"):
        await run(agent_token)
