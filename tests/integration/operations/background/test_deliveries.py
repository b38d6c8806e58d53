"""Anyone who asked to be called back is told of every end, signed, until it was heard or given up; and of nothing
more.
"""

import asyncio
import base64
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize import Result
from deputize.app import open_gateway, open_worker
from deputize.core.call import Callback
from deputize.core.contract.contract import Effects, LifecycleState
from deputize.core.errors import (
    DeliveryNotFound,
    MalformedRequest,
    OperatorConfirmationRequired,
    Problem,
    ScopeMissing,
    VersionNotInCapability,
)
from deputize.core.settings import WebhookSettings
from deputize.store.queries import load_statements
from tests.support.gateway_lab import GatewayLab, error_slug, lab_settings, parse_body, wait_until
from tests.support.scripted_tools import TOOLS, Gate, raise_error, set_behaviour
from tests.support.webhook_receiver import ReceivedRequest, WebhookReceiver, open_webhook_receiver

pytestmark = [pytest.mark.requirement("INV-4"), pytest.mark.requirement("NEW-3")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    folder = tmp_path_factory.mktemp("lab")
    hooks = WebhookSettings(hosts=("127.0.0.1",), retry_seconds=0.05, attempts=3, seconds=60)
    settings = lab_settings(module_database, folder, sweep_seconds=0.1).model_copy(update={"webhooks": hooks})
    db = await asyncpg.connect(module_database)
    async with open_gateway(settings, tools=TOOLS, development=True) as gateway, open_worker(gateway):
        yield GatewayLab(gateway=gateway, folder=folder, dsn=module_database, db=db)
    await db.close()


@pytest_asyncio.fixture(loop_scope="session")
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with open_webhook_receiver() as opened:
        yield opened


async def _submit_with_callback(lab: GatewayLab, tag: str, callback: Callback, tool: str = "note") -> str:
    outcome = await lab.call(tool, tag, key=tag, mode="async", callback=callback)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def _is_signature_valid(lab: GatewayLab, request: ReceivedRequest, name: str = "default") -> bool:
    """As any receiver of Standard Webhooks would."""
    secret = (await lab.gateway.webhooks.show_key(await lab.make_admin(), name, "127.0.0.1"))["secret"]
    assert secret is not None
    key = base64.b64decode(secret.removeprefix("whsec_"))
    told = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    mark = base64.b64encode(hmac.digest(key, told, "sha256")).decode()
    return f"v1,{mark}" in request.headers["webhook-signature"].split(" ")


async def test_the_end_of_a_run_is_delivered_signed_and_without_its_result(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    call_id = await _submit_with_callback(lab, "told", Callback(url=receiver.url))
    heard = await receiver.wait_for_request(1)
    event = orjson.loads(heard.body)
    assert (heard.path, heard.headers["content-type"]) == ("/hook", "application/cloudevents+json")
    assert (event["specversion"], event["type"]) == ("1.0", "tool.invocation.succeeded")
    assert (event["id"], event["subject"]) == (heard.headers["webhook-id"], call_id)
    assert event["data"]["links"]["self"] == f"/v1/calls/{call_id}"
    assert (event["data"]["state"], event["data"]["tool"]["name"]) == ("succeeded", "lab.note")
    assert "outcome" not in event["data"]
    assert b"ana" not in heard.body
    assert await _is_signature_valid(lab, heard)
    assert not await _is_signature_valid(lab, heard, "other")


async def test_the_result_goes_along_when_asked_for_without_what_is_sensitive(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    result = {"value": "done by ana@example.org", "password": "opens everything"}
    set_behaviour("with-result", lambda _: Result(payload=result, summary="ask ana@example.org"))
    await _submit_with_callback(lab, "with-result", Callback(url=receiver.url, secret="billing", include_result=True))
    heard = await receiver.wait_for_request(1)
    outcome = orjson.loads(heard.body)["data"]["outcome"]
    assert outcome["result"] == {"value": "done by [email]", "password": "[redacted]"}
    assert outcome["summary"] == "ask [email]"
    assert await _is_signature_valid(lab, heard, "billing")


@pytest.mark.requirement("GOV-6")
async def test_a_result_that_quotes_a_sensitive_argument_goes_along_without_it(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    result = {"value": "sesame opens for four words of hers", "sesame door": "sesame"}
    set_behaviour("quoting", lambda _: Result(payload=result, summary="told four words of hers"))
    arguments = {"tag": "quoting", "email": "four words of hers", "password": "sesame"}
    callback = Callback(url=receiver.url, include_result=True)
    outcome = await lab.call("enrol", arguments, key="quoting", mode="async", callback=callback)
    assert outcome.http_status == 202, outcome.body
    sent = orjson.loads((await receiver.wait_for_request(1)).body)["data"]["outcome"]
    assert sent["result"] == {"value": "[redacted] opens for [redacted]", "[redacted] door": "[redacted]"}
    assert sent["summary"] == "told [redacted]"


async def test_an_unknown_outcome_and_its_settlement_are_both_delivered(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    set_behaviour("settled", raise_error(ConnectionError("reset")))
    call_id = await _submit_with_callback(lab, "settled", Callback(url=receiver.url), tool="put")
    assert orjson.loads((await receiver.wait_for_request(1)).body)["type"] == "tool.invocation.unknown"
    set_behaviour("settled", lambda _: {"value": "done"})
    await lab.gateway.retry_call(await lab.make_caller(), call_id)
    assert orjson.loads((await receiver.wait_for_request(2)).body)["type"] == "tool.invocation.succeeded"
    assert receiver.requests[0].headers["webhook-id"] != receiver.requests[1].headers["webhook-id"]


async def test_a_failed_delivery_is_retried_under_the_same_id(lab: GatewayLab, receiver: WebhookReceiver) -> None:
    receiver.statuses = [503, 500]
    await _submit_with_callback(lab, "again", Callback(url=receiver.url))
    await receiver.wait_for_request(3)
    assert len({heard.headers["webhook-id"] for heard in receiver.requests}) == 1
    row = "select delivered_at is not null and due_at is null from deputize.deliveries where id = $1"

    async def is_delivered() -> bool:
        return bool(await lab.db.fetchval(row, receiver.requests[0].headers["webhook-id"]))

    await wait_until(is_delivered)


async def test_what_nobody_hears_joins_the_dead_letters_and_can_be_tried_again(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    receiver.statuses = [500, 500, 500]
    admin = await lab.make_admin()
    call_id = await _submit_with_callback(lab, "dead", Callback(url=receiver.url + "?token=secret"))

    async def is_dead() -> bool:
        return any(each["call_id"] == call_id for each in await lab.gateway.webhooks.list_dead_letters(admin, 50))

    await wait_until(is_dead)
    letters = await lab.gateway.webhooks.list_dead_letters(admin, 50)
    letter = next(each for each in letters if each["call_id"] == call_id)
    assert (letter["attempts"], letter["host"], letter["problem"]) == (3, "127.0.0.1", "the receiver answered 500")
    assert "secret" not in str(letters)
    assert (await lab.gateway.webhooks.retry_delivery(admin, letter["id"]))["retry"] == "due"
    await receiver.wait_for_request(4)
    assert receiver.requests[3].headers["webhook-id"] == letter["id"]
    with pytest.raises(DeliveryNotFound):
        await lab.gateway.webhooks.retry_delivery(admin, letter["id"])
    commands = await lab.db.fetch("select entry from deputize.audit_entries where entry::text is not null")
    assert any(b'"command":"retry_delivery"' in row["entry"] for row in commands)


async def test_a_result_is_delivered_even_if_its_tool_was_switched_off_since(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    gate = Gate({"value": "done"})
    set_behaviour("disabled", gate)
    await _submit_with_callback(lab, "disabled", Callback(url=receiver.url, include_result=True), "put")
    await gate.began.wait()
    admin, commands = await lab.make_admin(), lab.gateway.commands
    version = (await lab.runtime.authority.load_tenant("dev")).tools.resolve_version("lab.put").contract.version
    await commands.set_state(admin, "lab.put", version, LifecycleState.DISABLED)
    try:
        gate.open.set()
        heard = await receiver.wait_for_request(1)
    finally:
        await commands.set_state(admin, "lab.put", version, LifecycleState.AVAILABLE)
    assert orjson.loads(heard.body)["data"]["outcome"]["result"] == {"value": "done"}


async def test_a_delivery_that_cannot_even_be_tried_joins_the_dead_letters_and_the_others_go_out(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    gate = Gate()
    set_behaviour("unreadable", gate)
    broken = await _submit_with_callback(lab, "unreadable", Callback(url=receiver.url))
    await gate.began.wait()
    keys = lab.runtime.keys.find("dev")
    assert keys is not None
    box = keys.seal(broken, "callback", b'{"v": 2, "written": "by a newer release"}')
    await lab.db.execute("update deputize.callbacks set request = $2 where id = $1", broken, box)
    gate.open.set()
    dead = "select count(*) from deputize.deliveries where call_id = $1 and dead_at is not null"

    async def is_dead() -> bool:
        return bool(await lab.db.fetchval(dead, broken))

    await wait_until(is_dead)
    letters = await lab.gateway.webhooks.list_dead_letters(await lab.make_admin(), 50)
    assert [each["host"] for each in letters if each["call_id"] == broken] == [""]
    await _submit_with_callback(lab, "after-it", Callback(url=receiver.url))
    await receiver.wait_for_request(1)


async def test_a_receiver_that_is_gone_for_good_is_not_asked_again(lab: GatewayLab, receiver: WebhookReceiver) -> None:
    receiver.statuses = [410]
    call_id = await _submit_with_callback(lab, "gone", Callback(url=receiver.url))
    dead = "select count(*) from deputize.deliveries where call_id = $1 and dead_at is not null"

    async def is_dead() -> bool:
        return bool(await lab.db.fetchval(dead, call_id))

    await wait_until(is_dead)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("callback", "why"),
    [
        (Callback(url="http://example.com/"), "must use https"),
        (Callback(url="https://example.com/", include_result=True), "results may not be sent"),
        (Callback(url="https://10.0.0.1/"), "not a public address"),
        (Callback(url="https://localhost/"), "not a public address"),
        (Callback(url="https://me:too@example.com/"), "https address without"),
        (Callback(url="ftp://example.com/"), "https address without"),
        (Callback(url="https://[::1"), "not a valid URL"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_address_nobody_allowed_is_refused_before_anything_happens(
    lab: GatewayLab, callback: Callback, why: str
) -> None:
    outcome = await lab.call("note", "refused", key="refused", mode="async", callback=callback)
    assert (outcome.http_status, error_slug(outcome)) == (403, "callback-refused")
    assert why in parse_body(outcome)["detail"]


async def test_where_a_name_leads_is_checked_when_it_is_used(lab: GatewayLab) -> None:
    callback = Callback(url="https://nobody.invalid/")
    call_id = await _submit_with_callback(lab, "unfound", callback)
    problem = "select problem from deputize.deliveries where call_id = $1 and problem is not null"

    async def is_dead() -> bool:
        return bool(await lab.db.fetchval(problem, call_id))

    await wait_until(is_dead)
    assert "cannot be resolved" in await lab.db.fetchval(problem, call_id)


async def test_nobody_is_called_back_about_a_call_that_is_answered_at_once(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    outcome = await lab.call("note", "sync", key="sync", callback=Callback(url=receiver.url))
    assert error_slug(outcome) == "malformed"
    slow = asyncio.Event()

    async def behave(_: Any) -> Any:
        if slow.is_set():
            return {"value": "done"}
        slow.set()
        await asyncio.sleep(60)

    set_behaviour("late", behave)
    late = await lab.call(
        "put", "late", key="late", deadline_ms=4000, may_continue=True, callback=Callback(url=receiver.url)
    )
    assert late.http_status == 202
    assert orjson.loads((await receiver.wait_for_request(1)).body)["subject"] == late.call_id


async def test_a_canceled_run_is_an_end_too(lab: GatewayLab, receiver: WebhookReceiver) -> None:
    blocked = asyncio.Event()

    async def behave(_: Any) -> Any:
        blocked.set()
        await asyncio.Event().wait()

    set_behaviour("canceled-told", behave)
    call_id = await _submit_with_callback(lab, "canceled-told", Callback(url=receiver.url), tool="look")
    await blocked.wait()
    await lab.gateway.cancellations.cancel_call(await lab.make_caller(), call_id)
    assert orjson.loads((await receiver.wait_for_request(1)).body)["type"] == "tool.invocation.canceled"


async def test_keys_and_dead_letters_are_for_administrators_and_shown_on_record(lab: GatewayLab) -> None:
    ana = await lab.make_caller()
    for asked in (lab.gateway.webhooks.show_key(ana, "default"), lab.gateway.webhooks.list_dead_letters(ana, 1)):
        with pytest.raises(ScopeMissing):
            await asked
    admin = await lab.make_admin()
    show_key = lab.gateway.webhooks.show_key
    first = await show_key(admin, "default", "A.example")
    assert first == await show_key(admin, "default", "a.example")
    others = [await show_key(admin, "billing", "a.example"), await show_key(admin, "default", "b.example")]
    assert first["secret"] not in [each["secret"] for each in others]
    # Without a host it would be the key of a sink of that name, and there is none.
    with pytest.raises(MalformedRequest):
        await show_key(admin, "default")
    entries = await lab.db.fetch("select entry from deputize.audit_entries where call_id is null")
    assert any(b'"command":"show_webhook_key"' in row["entry"] for row in entries)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"agents": ("reporter",), "ceiling": Effects.READ}, VersionNotInCapability),
        ({"agents": ("reporter",)}, OperatorConfirmationRequired),
        ({"operator": False}, OperatorConfirmationRequired),
        ({"auth_time": 1}, OperatorConfirmationRequired),
    ],
    ids=["a delegation to read", "an agent", "an administrator who is no operator", "a sign-in of long ago"],
)
async def test_the_key_that_signs_is_shown_to_an_operator_only(
    lab: GatewayLab, changes: dict[str, Any], refusal: type[Problem]
) -> None:
    with pytest.raises(refusal):
        await lab.gateway.webhooks.show_key(replace(await lab.make_admin(), **changes), "billing", "a.example")


async def test_addresses_lie_sealed(lab: GatewayLab, receiver: WebhookReceiver) -> None:
    call_id = await _submit_with_callback(lab, "address", Callback(url=receiver.url + "?token=a-canary"))
    await receiver.wait_for_request(1)
    asked = await lab.db.fetchval("select request from deputize.callbacks where id = $1", call_id)
    assert b"canary" not in asked


async def test_anyone_who_ends_a_call_the_same_commit_writes_the_delivery(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    """Here the sweeper does, for a worker that died; that worker's own late outcome is told too."""
    gate = Gate()
    set_behaviour("swept", gate)
    call_id = await _submit_with_callback(lab, "swept", Callback(url=receiver.url))
    await gate.began.wait()
    await lab.db.execute(
        "update deputize.calls set owner = gen_random_uuid(), deadline_at = now() - interval '1 hour' where id = $1",
        call_id,
    )
    assert orjson.loads((await receiver.wait_for_request(1)).body)["type"] == "tool.invocation.unknown"
    gate.open.set()
    assert orjson.loads((await receiver.wait_for_request(2)).body)["type"] == "tool.invocation.succeeded"


async def test_a_delivery_whose_process_died_is_made_by_another(lab: GatewayLab, receiver: WebhookReceiver) -> None:
    call_id = await _submit_with_callback(lab, "orphaned", Callback(url=receiver.url))
    await receiver.wait_for_request(1)
    receiver.requests.clear()
    async with lab.db.transaction():
        # One more, seen by this transaction alone: it is taken here, and then nobody is left to send it.
        made = await lab.db.fetchval(
            "insert into deputize.deliveries (tenant, call_id, state, due_at) values ('dev', $1, 'succeeded', now()) "
            "returning id",
            call_id,
        )
        seconds = lab.runtime.settings.webhooks.seconds + 30
        taken = await lab.db.fetch(
            load_statements("webhooks")["take_due_deliveries"], 20, seconds, 5, "", [], [], [], [], []
        )
        # Beside it may be a delivery of an earlier test that is due once more.
        assert made in [row["id"] for row in taken]
    put_off = "select due_at > now() + interval '20 seconds' and attempts = 1 from deputize.deliveries where id = $1"
    assert await lab.db.fetchval(put_off, made)
    await asyncio.sleep(0.5)
    assert receiver.requests == []
    await lab.db.execute("update deputize.deliveries set due_at = now() where id = $1", made)
    assert (await receiver.wait_for_request(1)).headers["webhook-id"] == str(made)


async def test_callbacks_of_one_user_leave_room_for_those_of_others(lab: GatewayLab, receiver: WebhookReceiver) -> None:
    """An agent's receiver answers nothing: it holds two deliveries at a time, however many wait."""
    release, open_count, most_open, served = asyncio.Event(), 0, 0, 0

    async def hold_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_count, most_open, served
        open_count += 1
        most_open = max(most_open, open_count)
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(b"HTTP/1.1 204 Fine\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        open_count, served = open_count - 1, served + 1

    server = await asyncio.start_server(hold_request, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    eve, bob = await lab.make_caller("eve"), await lab.make_caller("bob")
    for number in range(8):
        await lab.call("note", f"held-{number}", by=eve, key=f"h{number}", mode="async", callback=Callback(url=url))
    try:
        waiting = "select count(*) from deputize.deliveries where caller_user = 'eve' and delivered_at is null"

        async def has_all() -> bool:
            return bool(await lab.db.fetchval(waiting) == 8) and open_count == 2

        await wait_until(has_all)
        for number in range(3):
            await lab.call("note", f"b{number}", by=bob, mode="async", key=f"b{number}",
                           callback=Callback(url=receiver.url))  # fmt: skip
        await receiver.wait_for_request(3)
        assert (open_count, most_open, served) == (2, 2, 0)
    finally:
        release.set()

    async def has_served_all() -> bool:
        return served == 8

    await wait_until(has_served_all)
    assert most_open == 2
    server.close()


async def test_more_open_deliveries_than_a_user_may_have_are_dead_letters(
    lab: GatewayLab, receiver: WebhookReceiver
) -> None:
    await lab.db.execute(
        "insert into deputize.deliveries (tenant, call_id, state, caller_user, due_at) "
        "select 'dev', gen_random_uuid(), 'succeeded', 'eve', now() + interval '1 day' from generate_series(1, 1000)"
    )
    by_whom = {"eve": await lab.make_caller("eve"), "bob": await lab.make_caller("bob")}
    calls = {
        user: (await lab.call("note", f"over-{user}", by=by, mode="async", key=f"over-{user}",
                              callback=Callback(url=receiver.url))).call_id
        for user, by in by_whom.items()
    }  # fmt: skip
    for call_id in calls.values():
        await lab.wait_for_state(call_id, "succeeded")
    await receiver.wait_for_request(1)
    letters = {
        each["call_id"]: each for each in await lab.gateway.webhooks.list_dead_letters(await lab.make_admin(), 9)
    }
    assert letters[calls["eve"]]["problem"] == "1000 deliveries of this user are open already"
    assert calls["bob"] not in letters
    assert len(receiver.requests) == 1
    await lab.db.execute("delete from deputize.deliveries where caller_user = 'eve'")
