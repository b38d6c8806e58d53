"""Whoever asked to be called back is told of every end, signed, until it was heard or given up; and of nothing more."""

import asyncio
import base64
import hmac
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.app import open_gateway, open_worker
from deputize.core.call import Callback
from deputize.core.contract import LifecycleState
from deputize.core.errors import DeliveryNotFound, ScopeMissing
from deputize.core.settings import Webhooks
from deputize.store.queries import load
from tests.integration.lifecycle.lab import Lab, body, lab_settings, slug, until
from tests.integration.lifecycle.tools import TOOLS, Gate, on, raising
from tests.integration.runs.receiver import Heard, Receiver, receiving

pytestmark = [pytest.mark.requirement("INV-4"), pytest.mark.requirement("NEW-3")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    hooks = Webhooks(hosts=("127.0.0.1",), retry_seconds=0.05, attempts=3, seconds=2)
    settings = lab_settings(module_database, folder, sweep_seconds=0.1).model_copy(update={"webhooks": hooks})
    db = await asyncpg.connect(module_database)
    async with open_gateway(settings, tools=TOOLS, development=True) as gateway, open_worker(gateway):
        yield Lab(gateway=gateway, folder=folder, dsn=module_database, db=db)
    await db.close()


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


async def _called(lab: Lab, tag: str, callback: Callback, tool: str = "note") -> str:
    outcome = await lab.call(tool, tag, key=tag, mode="async", callback=callback)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def _checks(lab: Lab, heard: Heard, name: str = "default") -> bool:
    """As any receiver of Standard Webhooks would."""
    secret = (await lab.gateway.webhooks.key(await lab.admin(), name))["secret"]
    key = base64.b64decode(secret.removeprefix("whsec_"))
    told = f"{heard.headers['webhook-id']}.{heard.headers['webhook-timestamp']}.".encode() + heard.body
    mark = base64.b64encode(hmac.digest(key, told, "sha256")).decode()
    return f"v1,{mark}" in heard.headers["webhook-signature"].split(" ")


async def test_the_end_of_a_run_is_told_signed_and_without_its_result(lab: Lab, receiver: Receiver) -> None:
    call_id = await _called(lab, "told", Callback(url=receiver.url))
    heard = await receiver.until(1)
    event = orjson.loads(heard.body)
    assert (heard.path, heard.headers["content-type"]) == ("/hook", "application/cloudevents+json")
    assert (event["specversion"], event["type"]) == ("1.0", "tool.invocation.succeeded")
    assert (event["id"], event["subject"]) == (heard.headers["webhook-id"], call_id)
    assert event["data"]["links"]["self"] == f"/v1/calls/{call_id}"
    assert (event["data"]["state"], event["data"]["tool"]["name"]) == ("succeeded", "lab.note")
    assert "outcome" not in event["data"]
    assert b"ana" not in heard.body
    assert await _checks(lab, heard)
    assert not await _checks(lab, heard, "other")


async def test_the_result_goes_along_when_asked_for_without_what_is_sensitive(lab: Lab, receiver: Receiver) -> None:
    on("with-result", lambda _: {"value": "done", "password": "opens everything"})
    await _called(lab, "with-result", Callback(url=receiver.url, secret="billing", include_result=True))
    heard = await receiver.until(1)
    assert orjson.loads(heard.body)["data"]["outcome"]["result"] == {"value": "done", "password": "[redacted]"}
    assert await _checks(lab, heard, "billing")


async def test_an_unknown_outcome_is_told_and_so_is_its_settlement(lab: Lab, receiver: Receiver) -> None:
    on("settled", raising(ConnectionError("reset")))
    call_id = await _called(lab, "settled", Callback(url=receiver.url), tool="put")
    assert orjson.loads((await receiver.until(1)).body)["type"] == "tool.invocation.unknown"
    on("settled", lambda _: {"value": "done"})
    await lab.gateway.lifecycle.retry(await lab.caller(), call_id)
    assert orjson.loads((await receiver.until(2)).body)["type"] == "tool.invocation.succeeded"
    assert receiver.heard[0].headers["webhook-id"] != receiver.heard[1].headers["webhook-id"]


async def test_a_receiver_that_fails_is_told_again_under_the_same_id(lab: Lab, receiver: Receiver) -> None:
    receiver.statuses = [503, 500]
    await _called(lab, "again", Callback(url=receiver.url))
    await receiver.until(3)
    assert len({heard.headers["webhook-id"] for heard in receiver.heard}) == 1
    row = "select delivered_at is not null and due_at is null from deputize.deliveries where id = $1"

    async def delivered() -> bool:
        return bool(await lab.db.fetchval(row, receiver.heard[0].headers["webhook-id"]))

    await until(delivered)


async def test_what_nobody_hears_joins_the_dead_letters_and_can_be_tried_again(lab: Lab, receiver: Receiver) -> None:
    receiver.statuses = [500, 500, 500]
    admin = await lab.admin()
    call_id = await _called(lab, "dead", Callback(url=receiver.url + "?token=secret"))

    async def is_dead() -> bool:
        return any(each["call_id"] == call_id for each in await lab.gateway.webhooks.dead_letters(admin, 50))

    await until(is_dead)
    letters = await lab.gateway.webhooks.dead_letters(admin, 50)
    letter = next(each for each in letters if each["call_id"] == call_id)
    assert (letter["attempts"], letter["host"], letter["problem"]) == (3, "127.0.0.1", "the receiver answered 500")
    assert "secret" not in str(letters)
    assert (await lab.gateway.webhooks.retry(admin, letter["id"]))["retry"] == "due"
    await receiver.until(4)
    assert receiver.heard[3].headers["webhook-id"] == letter["id"]
    with pytest.raises(DeliveryNotFound):
        await lab.gateway.webhooks.retry(admin, letter["id"])
    commands = await lab.db.fetch("select entry from deputize.audit_entries where entry::text is not null")
    assert any(b'"command":"retry_delivery"' in row["entry"] for row in commands)


async def test_a_result_is_told_even_if_its_tool_was_switched_off_since(lab: Lab, receiver: Receiver) -> None:
    gate = Gate({"value": "done"})
    on("disabled", gate)
    await _called(lab, "disabled", Callback(url=receiver.url, include_result=True), "put")
    await gate.began.wait()
    admin, commands = await lab.admin(), lab.gateway.commands
    version = (await lab.rooms.authority.of("dev")).tools.resolve("lab.put").contract.version
    await commands.set_state(admin, "lab.put", version, LifecycleState.DISABLED)
    try:
        gate.open.set()
        heard = await receiver.until(1)
    finally:
        await commands.set_state(admin, "lab.put", version, LifecycleState.AVAILABLE)
    assert orjson.loads(heard.body)["data"]["outcome"]["result"] == {"value": "done"}


async def test_a_delivery_that_cannot_even_be_tried_joins_the_dead_letters_and_the_others_go_out(
    lab: Lab, receiver: Receiver
) -> None:
    gate = Gate()
    on("unreadable", gate)
    broken = await _called(lab, "unreadable", Callback(url=receiver.url))
    await gate.began.wait()
    keys = lab.rooms.keys.ready("dev")
    assert keys is not None
    box = keys.seal(broken, "callback", b'{"v": 2, "written": "by a newer release"}')
    await lab.db.execute("update deputize.callbacks set asked = $2 where id = $1", broken, box)
    gate.open.set()
    dead = "select count(*) from deputize.deliveries where call_id = $1 and dead_at is not null"

    async def is_dead() -> bool:
        return bool(await lab.db.fetchval(dead, broken))

    await until(is_dead)
    letters = await lab.gateway.webhooks.dead_letters(await lab.admin(), 50)
    assert [each["host"] for each in letters if each["call_id"] == broken] == [""]
    await _called(lab, "after-it", Callback(url=receiver.url))
    await receiver.until(1)


async def test_a_receiver_that_is_gone_for_good_is_not_asked_again(lab: Lab, receiver: Receiver) -> None:
    receiver.statuses = [410]
    call_id = await _called(lab, "gone", Callback(url=receiver.url))
    dead = "select count(*) from deputize.deliveries where call_id = $1 and dead_at is not null"

    async def is_dead() -> bool:
        return bool(await lab.db.fetchval(dead, call_id))

    await until(is_dead)
    assert len(receiver.heard) == 1


@pytest.mark.parametrize(
    ("callback", "why"),
    [
        (Callback(url="http://example.com/"), "over https only"),
        (Callback(url="https://example.com/", include_result=True), "results are not sent"),
        (Callback(url="https://10.0.0.1/"), "not a public address"),
        (Callback(url="https://localhost/"), "not a public address"),
        (Callback(url="https://me:too@example.com/"), "plain https address"),
        (Callback(url="ftp://example.com/"), "plain https address"),
        (Callback(url="https://[::1"), "no URL"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_address_nobody_allowed_is_refused_before_anything_happens(
    lab: Lab, callback: Callback, why: str
) -> None:
    outcome = await lab.call("note", "refused", key="refused", mode="async", callback=callback)
    assert (outcome.http_status, slug(outcome)) == (403, "callback-refused")
    assert why in body(outcome)["detail"]


async def test_where_a_name_leads_is_checked_when_it_is_used(lab: Lab) -> None:
    callback = Callback(url="https://nobody.invalid/")
    call_id = await _called(lab, "unfound", callback)
    problem = "select problem from deputize.deliveries where call_id = $1 and problem is not null"

    async def told() -> bool:
        return bool(await lab.db.fetchval(problem, call_id))

    await until(told)
    assert "cannot be found" in await lab.db.fetchval(problem, call_id)


async def test_nobody_is_called_back_about_a_call_that_is_answered_at_once(lab: Lab, receiver: Receiver) -> None:
    outcome = await lab.call("note", "sync", key="sync", callback=Callback(url=receiver.url))
    assert slug(outcome) == "malformed"
    slow = asyncio.Event()

    async def behave(_: Any) -> Any:
        if slow.is_set():
            return {"value": "done"}
        slow.set()
        await asyncio.sleep(3)

    on("late", behave)
    late = await lab.call(
        "put", "late", key="late", deadline_ms=150, may_continue=True, callback=Callback(url=receiver.url)
    )
    assert late.http_status == 202
    assert orjson.loads((await receiver.until(1)).body)["subject"] == late.call_id


async def test_a_canceled_run_is_an_end_too(lab: Lab, receiver: Receiver) -> None:
    blocked = asyncio.Event()

    async def behave(_: Any) -> Any:
        blocked.set()
        await asyncio.Event().wait()

    on("canceled-told", behave)
    call_id = await _called(lab, "canceled-told", Callback(url=receiver.url), tool="look")
    await blocked.wait()
    await lab.gateway.cancellations.cancel(await lab.caller(), call_id)
    assert orjson.loads((await receiver.until(1)).body)["type"] == "tool.invocation.canceled"


async def test_keys_and_dead_letters_are_for_administrators_and_shown_on_record(lab: Lab) -> None:
    ana = await lab.caller()
    for asked in (lab.gateway.webhooks.key(ana, "default"), lab.gateway.webhooks.dead_letters(ana, 1)):
        with pytest.raises(ScopeMissing):
            await asked
    admin = await lab.admin()
    first = await lab.gateway.webhooks.key(admin, "default")
    assert first == await lab.gateway.webhooks.key(admin, "default")
    assert first["secret"] != (await lab.gateway.webhooks.key(admin, "billing"))["secret"]
    entries = await lab.db.fetch("select entry from deputize.audit_entries where call_id is null")
    assert any(b'"command":"show_webhook_key"' in row["entry"] for row in entries)


async def test_addresses_lie_sealed(lab: Lab, receiver: Receiver) -> None:
    call_id = await _called(lab, "address", Callback(url=receiver.url + "?token=a-canary"))
    await receiver.until(1)
    asked = await lab.db.fetchval("select asked from deputize.callbacks where id = $1", call_id)
    assert b"canary" not in asked


async def test_whoever_ends_a_call_the_same_commit_writes_the_delivery(lab: Lab, receiver: Receiver) -> None:
    """Here the sweeper does, for a worker that died; that worker's own late outcome is told too."""
    gate = Gate()
    on("swept", gate)
    call_id = await _called(lab, "swept", Callback(url=receiver.url))
    await gate.began.wait()
    await lab.db.execute(
        "update deputize.calls set owner = gen_random_uuid(), deadline_at = now() - interval '1 hour' where id = $1",
        call_id,
    )
    assert orjson.loads((await receiver.until(1)).body)["type"] == "tool.invocation.unknown"
    gate.open.set()
    assert orjson.loads((await receiver.until(2)).body)["type"] == "tool.invocation.succeeded"


async def test_a_delivery_whose_process_died_is_made_by_another(lab: Lab, receiver: Receiver) -> None:
    call_id = await _called(lab, "orphaned", Callback(url=receiver.url))
    await receiver.until(1)
    receiver.heard.clear()
    async with lab.db.transaction():
        # One more, seen by this transaction alone: it is taken here, and then nobody is left to send it.
        made = await lab.db.fetchval(
            "insert into deputize.deliveries (tenant, call_id, state, due_at) values ('dev', $1, 'succeeded', now()) "
            "returning id",
            call_id,
        )
        seconds = lab.rooms.settings.webhooks.seconds + 30
        taken = await lab.db.fetch(load("webhooks")["take_due"], 20, seconds, 5, "", [])
        assert [row["id"] for row in taken] == [made]
    put_off = "select due_at > now() + interval '20 seconds' and attempts = 1 from deputize.deliveries where id = $1"
    assert await lab.db.fetchval(put_off, made)
    await asyncio.sleep(0.5)
    assert receiver.heard == []
    await lab.db.execute("update deputize.deliveries set due_at = now() where id = $1", made)
    assert (await receiver.until(1)).headers["webhook-id"] == str(made)
