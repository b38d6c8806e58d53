"""What tools said is stored sealed and bounded, erased with its user, and told to owners where no rule resolves it."""

import asyncpg
import orjson
import pytest

from deputize.acts.erasure import continue_open_erasures
from deputize.execute.egress import Egress
from deputize.interfaces.cli.diagnostics.consistency_checks import check_consistency_rules
from deputize.operations.approvals.notifications.notifier import ApprovalNotifier
from deputize.store.consistency_values import MAX_VALUES
from tests.integration.conftest import ADMIN, HttpGateway
from tests.integration.lifecycle.consistency.sources import RULES, ask, get_gateway_runtime, get_slug, let_say
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.requirement("INV-7")]


async def test_what_is_stored_shows_neither_the_value_nor_the_thing_nor_the_user(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    let_say(770077, "limit", crm="a-rare-secret")
    await ask(gateway, "crm", 770077, token=gateway.token("zita-visible"))
    rows = [row["row"] for row in await db.fetch("select v::text as row from deputize.observed_values v")]
    assert rows
    for text in ("a-rare-secret", "770077", "zita-visible"):
        assert not any(text in row or text.encode().hex() in row for row in rows)


async def test_a_result_that_cannot_be_compared_is_not_released(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    let_say(34, "limit", crm=1)
    await db.execute("alter function deputize.observe_value rename to observe_nothing")
    try:
        answer = await ask(gateway, "crm", 34)
    finally:
        await db.execute("alter function deputize.observe_nothing rename to observe_value")
    assert (get_slug(answer), answer["error"]["retryable"], "result" in answer) == ("unavailable", True, False)
    assert "rule limits" in answer["error"]["message"]
    assert (await ask(gateway, "crm", 34))["result"] == {"limit": 1}


async def test_what_a_person_saw_is_erased_with_them(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    let_say(35, "limit", crm=1, billing=2)
    token = gateway.token("nils-erased")
    calls = [(await ask(gateway, "crm", 35, token=each))["call_id"] for each in (token, gateway.token("nina"))]
    left = "select call_id::text from deputize.observed_values where call_id = any($1::uuid[])"
    assert {row["call_id"] for row in await db.fetch(left, calls)} == set(calls)
    root = gateway.token("root", scopes=(ADMIN,))
    assert (await gateway.post("/v1/erasures", {"user": "nils-erased"}, token=root)).status_code == 202
    await continue_open_erasures(get_gateway_runtime(gateway), seconds=60, grace_seconds=0)
    assert [row["call_id"] for row in await db.fetch(left, calls)] == calls[1:]


async def test_owners_are_told_once_in_a_window(
    gateway: HttpGateway, db: asyncpg.Connection, receiver: WebhookReceiver
) -> None:
    await db.execute("delete from deputize.disagreements")
    let_say(36, "limit", crm="one-value", billing="another-value")
    for system in ("crm", "billing", "crm"):
        last = await ask(gateway, system, 36)
    egress = Egress(allow_hosts=frozenset({"127.0.0.1"}))
    notifier = ApprovalNotifier(get_gateway_runtime(gateway), egress.send)
    assert await notifier.write_disagreement_notifications() == 1
    await ask(gateway, "billing", 36)
    assert await notifier.write_disagreement_notifications() == 0
    await notifier.send_notifications()
    (request,) = receiver.requests
    event = orjson.loads(request.body)
    assert (event["type"], event["data"]["rule"]) == ("deputize.sources.disagree", "limits")
    assert {each["tool"] for each in event["data"]["sources"]} == {"crm.get_customer", "billing.get_account"}
    assert b"-value" not in request.body
    # The next window begins.
    await db.execute("update deputize.disagreements set expires_at = now() - interval '1 second'")
    assert get_slug(last) == get_slug(await ask(gateway, "billing", 36)) == "sources-disagree"
    assert await notifier.write_disagreement_notifications() == 1
    await egress.aclose()


async def test_owners_are_not_flooded(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    await db.execute("delete from deputize.disagreements")
    for number in range(300, 325):
        let_say(number, "limit", crm=1, billing=2)
        await ask(gateway, "crm", number)
        assert get_slug(await ask(gateway, "billing", number)) == "sources-disagree"
    assert await db.fetchval("select count(*) from deputize.disagreements") == 20


async def test_a_user_fills_only_so_many_rows_and_what_expired_is_deleted(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    let_say(37, "limit", crm=1, billing=2)
    token = gateway.token("greedy")
    call_id = (await ask(gateway, "crm", 37, token=token))["call_id"]
    await db.execute(
        "insert into deputize.observed_values select tenant, subject, rule, int4send(n), tool, 0, call_id, sealed, "
        "seen_at - make_interval(secs => n / 1000.0), expires_at "
        "from deputize.observed_values, generate_series(1, $2) n where call_id = $1",
        call_id, MAX_VALUES + 50,
    )  # fmt: skip
    await ask(gateway, "billing", 37, token=token)
    subject = "select subject from deputize.observed_values where call_id = $1 limit 1"
    mine = f"from deputize.observed_values where subject = ({subject})"
    assert await db.fetchval(f"select count(*) {mine}", call_id) == MAX_VALUES
    # The newest stay.
    assert await db.fetchval(f"select count(*) {mine} and tool = 'billing.get_account'", call_id) == 1
    await db.execute("update deputize.observed_values set expires_at = now() where call_id = $1", call_id)
    assert await get_gateway_runtime(gateway).consistency_values.delete_expired() >= 1
    assert await db.fetchval("select count(*) from deputize.observed_values where call_id = $1", call_id) == 0


async def test_writes_and_unknown_tools_are_no_sources_and_doctor_says_so(gateway: HttpGateway) -> None:
    let_say(38, "limit", crm=1, billing=2)
    for key in ("a", "b"):
        written = (await gateway.call("crm.touch_customer", {"id": "38"}, token=gateway.token(), key=key)).json()
        assert (written["is_error"], written["warnings"]) == (False, [])
        assert (await ask(gateway, "billing", 38))["warnings"] == []
    assert gateway.settings.database.url is not None
    finding = await check_consistency_rules(gateway.settings, gateway.settings.database.url.get_secret_value())
    assert (finding.status, finding.summary) == ("warning", "5 rules, 2 sources not compared")
    assert "rule limits: crm.touch_customer: it is not a read" in finding.todo
    honest = gateway.settings.model_copy(update={"consistency": RULES[:3]})
    finding = await check_consistency_rules(honest, gateway.settings.database.url.get_secret_value())
    assert (finding.status, finding.summary) == ("good", "3 rules")


async def test_disagreements_are_counted(gateway: HttpGateway) -> None:
    let_say(39, "address", crm="a", billing="b")
    name, labels = "deputize_source_disagreements_total", {"rule": "addresses", "resolved": "true"}
    registry = get_gateway_runtime(gateway).metrics.registry
    before = registry.get_sample_value(name, labels) or 0
    for system in ("crm", "billing"):
        await ask(gateway, system, 39)
    assert registry.get_sample_value(name, labels) == before + 1
