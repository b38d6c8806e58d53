"""Human tasks over REST: listed, shown and resolved by administrators of their own tenant."""

import asyncpg
import pytest

from deputize.operations.background.reconciler import Reconciler
from tests.integration.conftest import ADMIN, HttpGateway
from tests.support.gateway_internals import get_lifecycle

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

TASKS_PATH = "/v1/human-tasks"
MARK_UNKNOWN = "update deputize.calls set state = 'unknown', deadline_at = now() - interval '1 hour' where id = $1"


async def make_human_task(gateway: HttpGateway, key: str) -> tuple[str, str]:
    """Make a call whose outcome is unknown; return its id and that of its task."""
    made = (await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, key=key)).json()
    assert gateway.settings.database.url is not None
    database = await asyncpg.connect(gateway.settings.database.url.get_secret_value())
    try:
        async with database.transaction():
            # No call that succeeded becomes unknown by itself.
            await database.execute("alter table deputize.calls disable trigger calls_refuse_transition")
            await database.execute(MARK_UNKNOWN, made["call_id"])
            await database.execute("alter table deputize.calls enable trigger calls_refuse_transition")
        await database.execute("update deputize.reconciliations set due_at = now() - interval '1 hour'")
    finally:
        await database.close()
    assert gateway.in_process is not None
    await Reconciler(get_lifecycle(gateway.in_process)).reconcile_due()
    listed = (await gateway.get(TASKS_PATH, token=gateway.token("root", scopes=[ADMIN]))).json()["tasks"]
    return made["call_id"], next(each["task_id"] for each in listed if each["call"]["call_id"] == made["call_id"])


async def test_an_administrator_lists_and_answers_a_human_task(gateway: HttpGateway) -> None:
    admin = gateway.token("root", scopes=[ADMIN])
    call, task = await make_human_task(gateway, "answered")
    shown = (await gateway.get(f"{TASKS_PATH}/{task}", token=admin)).json()
    assert (shown["state"], shown["kind"], shown["question"]["key"]) == ("open", "reconcile", call)
    answer = {"outcome": "happened", "reason": "the new name is there"}
    resolved = await gateway.post(f"{TASKS_PATH}/{task}/resolve", answer, token=admin)
    assert (resolved.status_code, resolved.json()["call"]["state"]) == (200, "succeeded")
    assert (await gateway.get(f"/v1/calls/{call}")).json()["result"]["settled"]["happened"] is True
    again = await gateway.post(f"{TASKS_PATH}/{task}/resolve", answer, token=admin)
    assert (again.status_code, again.json()["error"]["slug"]) == (409, "human-task-closed")
    assert (await gateway.get(TASKS_PATH, token=admin)).json()["tasks"] == []
    every = (await gateway.get(TASKS_PATH, token=admin, state="all")).json()["tasks"]
    assert [each["resolved_by"] for each in every] == ["root"]
    of_kind = [(await gateway.get(TASKS_PATH, token=admin, state="all", kind=each)) for each in ("reconcile", "undo")]
    assert [len(each.json()["tasks"]) for each in of_kind] == [1, 0]
    assert (await gateway.get(TASKS_PATH, token=admin, kind="approval")).status_code == 400
    for act in ("done", "dismissed"):
        refused = await gateway.post(f"{TASKS_PATH}/{task}/resolve", {"outcome": act, "reason": "x"}, token=admin)
        assert refused.status_code == 409


async def test_nobody_else_sees_or_answers_them(gateway: HttpGateway) -> None:
    _, task = await make_human_task(gateway, "hidden")
    answer = {"outcome": "happened", "reason": "I say so"}
    assert (await gateway.get(TASKS_PATH)).status_code == 403
    assert (await gateway.get(f"{TASKS_PATH}/{task}")).status_code == 403
    assert (await gateway.post(f"{TASKS_PATH}/{task}/resolve", answer)).status_code == 403
    other = gateway.other_token("otto", scopes=[ADMIN])
    assert (await gateway.get(TASKS_PATH, token=other)).json() == {"tasks": [], "next_before": None}
    assert (await gateway.get(f"{TASKS_PATH}/{task}", token=other)).status_code == 404
    assert (await gateway.post(f"{TASKS_PATH}/{task}/resolve", answer, token=other)).status_code == 404


@pytest.mark.parametrize(
    ("case", "body"),
    list(enumerate([{}, {"outcome": "happened"}, {"outcome": "maybe", "reason": "x"}, [], {"reason": "x"}])),
)
async def test_an_answer_says_what_and_why(case: int, body: object, gateway: HttpGateway) -> None:
    _, task = await make_human_task(gateway, f"unsaid-{case}")
    admin = gateway.token("root", scopes=[ADMIN])
    assert (await gateway.post(f"{TASKS_PATH}/{task}/resolve", body, token=admin)).status_code == 400
