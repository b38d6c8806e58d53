"""Whatever belongs to another tenant, or to another caller, is not there at the MCP door."""

from typing import Any

import pytest

from deputize.core.mcp import HANDSHAKES, MODERN
from deputize.doors.mcp.door import MODERN_METHODS, OLDER_METHODS
from tests.integration.conftest import ADMIN, SCOPES, Served
from tests.integration.doors.mcp.speaking import TASKS, Answer, Speaker

pytestmark = pytest.mark.requirement("GOV-1")

NOBODYS = "01890000-0000-7000-8000-000000000000"
METHODS = [*((MODERN, each) for each in MODERN_METHODS), *((HANDSHAKES[0], each) for each in OLDER_METHODS)]


async def _ours(served: Served) -> str:
    made = await served.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="ours")
    call_id: str = made.json()["call_id"]
    return call_id


def _without(answer: Answer, *ids: str) -> tuple[int, str]:
    told: dict[str, Any] = answer.told
    for place in (told.get("error", {}).get("data", {}), told.get("error", {}).get("data", {}).get("error", {})):
        for name in ("trace_id", "call_id", "instance"):
            place.pop(name, None)
    text = str(told)
    for each in ids:
        text = text.replace(each, "ID")
    return answer.status, text


@pytest.mark.parametrize(("version", "method"), METHODS)
async def test_every_method_keeps_tenants_apart(served: Served, version: str, method: str) -> None:
    ours = await _ours(served)
    token = served.other_token(scopes=(*SCOPES, ADMIN))
    speaker = Speaker(served, token=token, version=version, abilities=TASKS)
    answers = []
    for call_id, tool in ((ours, "shop__rename_user"), (NOBODYS, "shop__not_there_at_all")):
        params = {
            "tools/call": {"name": tool, "arguments": {"id": 1, "name": "Ana"}},
            "initialize": {"protocolVersion": HANDSHAKES[0], "capabilities": {}},
        }.get(method, {"taskId": call_id} if method.startswith("tasks/") else {})
        answer = await speaker.ask(method, params)
        assert ours not in str(answer.told) or method.startswith("tasks/")
        answers.append(_without(answer, call_id, tool, tool.replace("__", ".")))
    assert answers[0] == answers[1]
    if method == "tools/list":
        assert set(await speaker.tools()) == {"calls_get", "calls_cancel"}


@pytest.mark.parametrize("name", ["calls_get", "calls_cancel"])
async def test_calls_of_others_are_not_shown_and_not_stopped(served: Served, name: str) -> None:
    ours = await _ours(served)
    for token in (
        served.other_token(scopes=(*SCOPES, ADMIN)),
        served.token("mallory"),
        served.token("ana", agent="bot"),
    ):
        speaker = Speaker(served, token=token)
        theirs = await speaker.call(name, {"call_id": ours})
        nobodys = await speaker.call(name, {"call_id": NOBODYS})
        assert theirs.result["isError"]
        assert _without(theirs, ours) == _without(nobodys, NOBODYS)
        assert theirs.structured["error"]["slug"] == "call-not-found"
