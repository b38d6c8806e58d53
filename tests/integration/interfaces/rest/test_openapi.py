"""The API document is true: every route it names was asked, well and badly, and answered as documented."""

import re
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from deputize.core.errors import list_problem_types
from docs.generate import build_api_document
from tests.integration.conftest import ACCESS_TOKEN, ADMIN, SCOPES, TOKEN_EXCHANGE, HttpGateway
from tests.support import shop_tools

UNKNOWN_ID = "01890000-0000-7000-8000-000000000000"


class OpenApiChecker:
    """Holds every answer against the document."""

    def __init__(self, gateway: HttpGateway, document: dict[str, Any]) -> None:
        self.gateway = gateway
        self.document = document
        self.requested_routes: set[tuple[str, str]] = set()

    async def request(
        self,
        verb: str,
        template: str,
        path: str,
        status: int,
        *,
        token: str | None,
        body: Any = None,
        form: dict[str, str] | None = None,
    ) -> Any:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        sent = {"json": body} if body is not None else {} if form is None else {"data": form}
        answer = await self.gateway.http.request(verb.upper(), path, headers=headers, **sent)
        assert answer.status_code == status, answer.text
        self.requested_routes.add((verb, template))
        self.check_response(verb, template, answer)
        told = answer.headers.get("content-type", "")
        is_json = not told.startswith(("text/", "application/x-ndjson", "application/octet-stream"))
        return answer.json() if is_json and answer.content else None

    def check_response(self, verb: str, template: str, answer: httpx2.Response) -> None:
        documented = self.document["paths"][template][verb]["responses"][str(answer.status_code)]
        if not answer.content:
            assert "content" not in documented
            return
        media = answer.headers["content-type"].partition(";")[0]
        schema = documented["content"][media].get("schema")
        if schema:
            whole = {**schema, "components": self.document["components"]}
            jsonschema_rs.validator_for(whole).validate(answer.json())


def test_operations_have_short_names_of_their_own_and_say_if_they_need_a_token() -> None:
    operations = [each for verbs in build_api_document()["paths"].values() for each in verbs.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", each) for each in names)
    assert all("security" in each for each in operations)


async def test_every_documented_route_answers_as_documented(gateway: HttpGateway) -> None:
    document = (await gateway.http.get("/openapi.json")).json()
    checker = OpenApiChecker(gateway, document)
    await _check_calls(checker)
    await _check_runs(checker)
    await _check_approvals(checker)
    await _check_tools(checker)
    await _check_contract_tests(checker)
    await _check_secrets(checker)
    await _check_switches(checker)
    await _check_policies(checker)
    await _check_servers(checker)
    await _check_identity(checker)
    await _check_other_routes(checker)
    assert checker.requested_routes == {(verb, path) for path, verbs in document["paths"].items() for verb in verbs}


async def _check_calls(checker: OpenApiChecker) -> None:
    ask, ana = checker.request, checker.gateway.token()
    good = {"tool": "shop.list_users"}
    call = await ask("post", "/v1/calls", "/v1/calls", 200, token=ana, body=good)
    note = {"tool": "shop.rename_user", "arguments": {"id": "7", "name": "A"}}
    made = await ask("post", "/v1/calls", "/v1/calls", 200, token=ana, body=note)
    assert made["input"]["mutations"]
    failing_call = {**good, "tool": "shop.fail", "arguments": {"slug": "tool-failed"}}
    failed = await ask("post", "/v1/calls", "/v1/calls", 502, token=ana, body=failing_call)
    for status, token, body in ((401, None, good), (400, ana, {}), (404, ana, {"tool": "x"})):
        await ask("post", "/v1/calls", "/v1/calls", status, token=token, body=body)
    batch = {"calls": [good, note, failing_call, {"tool": "x", "depends_on": [2]}, {**note, "dry_run": True}]}
    await ask("post", "/v1/calls/batch", "/v1/calls/batch", 200, token=ana, body=batch)
    await ask("post", "/v1/calls/batch", "/v1/calls/batch", 400, token=ana, body={})
    undo = {"call_id": made["call_id"]}
    planned = await ask("post", "/v1/undo/plan", "/v1/undo/plan", 200, token=ana, body=undo)
    assert [each["call_id"] for each in planned["steps"]] == [made["call_id"]]
    await ask("post", "/v1/undo/plan", "/v1/undo/plan", 400, token=ana, body={"session": "s", "agent": "a"})
    await ask("post", "/v1/undo/requests", "/v1/undo/requests", 200, token=ana, body=undo)
    await ask("post", "/v1/undo/requests", "/v1/undo/requests", 400, token=ana, body={"call_id": "x"})
    await ask("get", "/v1/undo/requests", "/v1/undo/requests", 200, token=ana)
    undoer = checker.gateway.token("ana", scopes=(*SCOPES, "deputize:undo"))
    for status, token, digest in ((403, ana, planned["digest"]), (409, undoer, "0"), (200, undoer, planned["digest"])):
        await ask("post", "/v1/undo", "/v1/undo", status, token=token, body={**undo, "digest": digest})
    await ask("get", "/v1/calls", "/v1/calls?limit=2", 200, token=ana)
    await ask("get", "/v1/calls", "/v1/calls?limit=x", 400, token=ana)
    for one in (call, made, failed):
        await ask("get", "/v1/calls/{call_id}", f"/v1/calls/{one['call_id']}", 200, token=ana)
        await ask("get", "/v1/calls/{call_id}/events", f"/v1/calls/{one['call_id']}/events", 200, token=ana)
        await ask("get", "/v1/calls/{call_id}/export", f"/v1/calls/{one['call_id']}/export", 200, token=ana)
        for token in (ana, checker.gateway.token("root", scopes=(ADMIN,))):
            for view in ("decision", "audit"):
                where = f"/v1/calls/{one['call_id']}/{view}"
                await ask("get", f"/v1/calls/{{call_id}}/{view}", where, 200, token=token)
    await ask("get", "/v1/calls/{call_id}", f"/v1/calls/{UNKNOWN_ID}", 404, token=ana)
    await ask("get", "/v1/calls/{call_id}/events", f"/v1/calls/{UNKNOWN_ID}/events", 404, token=ana)
    await ask("get", "/v1/calls/{call_id}/export", f"/v1/calls/{UNKNOWN_ID}/export", 404, token=ana)
    await ask("get", "/v1/calls/{call_id}/receipt", f"/v1/calls/{UNKNOWN_ID}/receipt", 404, token=ana)
    await ask("get", "/v1/flows/{call_id}", f"/v1/flows/{UNKNOWN_ID}", 404, token=ana)
    await checker.gateway.load_receipt(made["call_id"], ana)
    path = f"/v1/calls/{made['call_id']}/receipt"
    proven = await ask("get", "/v1/calls/{call_id}/receipt", path, 200, token=ana)
    await ask("post", "/v1/calls/{call_id}/cancel", f"/v1/calls/{made['call_id']}/cancel", 409, token=ana)
    page = await ask("get", "/v1/audit", "/v1/audit?limit=2&tool=shop.list_users", 200, token=ana)
    await ask("get", "/v1/audit/{entry_id}", f"/v1/audit/{page['entries'][0]['id']}", 200, token=ana)
    await ask("get", "/v1/audit/{entry_id}", f"/v1/audit/{UNKNOWN_ID}", 404, token=ana)
    await ask("get", "/v1/audit/{entry_id}/receipt", f"/v1/audit/{proven['entry_id']}/receipt", 200, token=ana)
    await ask("get", "/v1/audit/{entry_id}/receipt", f"/v1/audit/{UNKNOWN_ID}/receipt", 404, token=ana)
    for path in ("/v1/audit", "/v1/audit/tail", "/v1/audit/export"):
        await ask("get", path, f"{path}?trace=x", 400, token=ana)
        await ask("get", path, path, 401, token=None)
    root = checker.gateway.token("root", scopes=(ADMIN,))
    assert (await ask("get", "/v1/observations", "/v1/observations", 200, token=root))["calls"] >= 1
    await ask("get", "/v1/observations", "/v1/observations?since=x", 400, token=root)
    await ask("get", "/v1/observations", "/v1/observations", 403, token=ana)
    assert len((await ask("get", "/v1/activity", "/v1/activity", 200, token=root))["minutes"]) == 60
    await ask("get", "/v1/activity", "/v1/activity", 403, token=ana)
    await _check_log(checker)


async def _check_log(checker: OpenApiChecker) -> None:
    ask, ana, root = checker.request, checker.gateway.token(), checker.gateway.token("root", scopes=(ADMIN,))
    for template, path in (
        ("checkpoint", "checkpoint"),
        ("keys", "keys"),
        ("checkpoints", "checkpoints"),
        ("unlogged", "unlogged"),
        ("tile/{tile_path}", "tile/0/000.p/1"),
    ):
        template = f"/log/{{tenant}}/{template}"
        await ask("get", template, f"/log/dev/{path}", 200, token=root)
        await ask("get", template, f"/log/dev/{path}", 403, token=ana)
        await ask("get", template, f"/log/nobody/{path}", 404, token=root)
        await ask("get", template, f"/log/dev/{path}", 401, token=None)


async def _check_switches(checker: OpenApiChecker) -> None:
    ask, ana, root = checker.request, checker.gateway.token(), checker.gateway.token("root", scopes=(ADMIN,))
    agent = {"kind": "agent", "value": "crawler", "unknown": True}
    await ask("post", "/v1/switches", "/v1/switches", 200, token=root, body={**agent, "off": True, "reason": "loud"})
    await ask("get", "/v1/switches", "/v1/switches", 200, token=root)
    await ask("post", "/v1/switches", "/v1/switches", 200, token=root, body={**agent, "off": False})
    for status, token, body in ((403, ana, {**agent, "off": True}), (400, root, agent), (401, None, agent)):
        await ask("post", "/v1/switches", "/v1/switches", status, token=token, body=body)
    await ask("get", "/v1/switches", "/v1/switches", 403, token=ana)


async def _check_servers(checker: OpenApiChecker) -> None:
    """What they answer where there is a server is held to the document in tests/integration/servers."""
    ask, ana, root = checker.request, checker.gateway.token(), checker.gateway.token("root", scopes=(ADMIN,))
    one, path = "/v1/servers/{name}", "/v1/servers/nobodys"
    word = {"item": "instructions", "digest": "", "decision": "accept"}
    for status, token in ((200, root), (403, ana), (401, None)):
        await ask("get", "/v1/servers", "/v1/servers", status, token=token)
    for status, token in ((404, root), (403, ana), (401, None)):
        await ask("get", one, path, status, token=token)
        await ask("post", f"{one}/test", f"{path}/test", status, token=token)
        await ask("get", f"{one}/changes", f"{path}/changes", status, token=token)
        await ask("post", f"{one}/changes/decide", f"{path}/changes/decide", status, token=token, body=word)
        await ask("get", f"{one}/tools", f"{path}/tools", status, token=token)
        effects = {"tools": [{"tool": "get", "digest": f"sha256:{'0' * 64}", "effects": "read"}]}
        await ask("post", f"{one}/effects", f"{path}/effects", status, token=token, body=effects)
    await ask("post", f"{one}/effects", f"{path}/effects", 400, token=root, body={"tools": []})
    await ask("get", f"{one}/changes", f"{path}/changes?state=no", 400, token=root)
    await ask("post", f"{one}/changes/decide", f"{path}/changes/decide", 400, token=root, body={})


async def _check_runs(checker: OpenApiChecker) -> None:
    ask, ana, root = checker.request, checker.gateway.token(), checker.gateway.token("root", scopes=(ADMIN,))
    body = {"tool": "shop.get_user", "arguments": {"id": 1}, "mode": "async", "priority": 3, "continue": True}
    queued = await ask("post", "/v1/calls", "/v1/calls", 202, token=ana, body=body)
    one, path = "/v1/calls/{call_id}", f"/v1/calls/{queued['call_id']}"
    shown = await ask("get", one, path, 200, token=ana)
    assert shown["links"] == queued["links"]
    await ask("post", f"{one}/retry", f"{path}/retry", 409, token=ana)
    back = f"{one}/rollback"
    await ask("post", back, f"{path}/rollback", 404, token=ana, body={"checkpoint": "half"})
    await ask("post", back, f"{path}/rollback", 400, token=ana, body={"checkpoint": 1})
    await ask("post", f"{one}/cancel", f"{path}/cancel", 202, token=ana)
    await ask("post", back, f"{path}/rollback", 409, token=ana, body={"checkpoint": "half"})
    await ask("post", f"{one}/retry", f"{path}/retry", 202, token=ana)
    await ask("post", f"{one}/retry", f"/v1/calls/{UNKNOWN_ID}/retry", 404, token=ana)
    refused = {**body, "callback": {"url": "http://a.example/", "secret": "x", "include_result": True}}
    await ask("post", "/v1/calls", "/v1/calls", 403, token=ana, body=refused)
    hooks = "/v1/webhooks"
    await ask("get", f"{hooks}/key", f"{hooks}/key?name=billing&host=billing.example.com", 200, token=root)
    await ask("get", f"{hooks}/key", f"{hooks}/key?name=No", 400, token=root)
    await ask("get", f"{hooks}/deadletters", f"{hooks}/deadletters", 200, token=root)
    await ask("get", f"{hooks}/deadletters", f"{hooks}/deadletters", 403, token=ana)
    tasks = "/v1/human-tasks"
    await ask("get", tasks, tasks, 200, token=root)
    await ask("get", tasks, tasks, 403, token=ana)
    task, unknown_task = f"{tasks}/{{task_id}}", f"{tasks}/{UNKNOWN_ID}"
    await ask("get", task, unknown_task, 404, token=root)
    settled = {"outcome": "happened", "reason": "seen"}
    await ask("post", f"{task}/resolve", f"{unknown_task}/resolve", 404, token=root, body=settled)
    retry = f"{hooks}/deadletters/{{delivery_id}}/retry"
    await ask("post", retry, retry.format(delivery_id=UNKNOWN_ID), 404, token=root)


async def _check_approvals(checker: OpenApiChecker) -> None:
    """What no one waits for; that people decide as documented is shown where there are people."""
    ask, ana, at = checker.request, checker.gateway.token(), "/v1/approvals"
    await ask("get", at, f"{at}?state=all&limit=2", 200, token=ana)
    await ask("get", at, f"{at}?state=some", 400, token=ana)
    one, nobodys = f"{at}/{{approval_id}}", f"{at}/{UNKNOWN_ID}"
    await ask("get", one, nobodys, 404, token=ana)
    for word in ("approve", "deny", "break-glass"):
        seen = {"reason": "so", "binding": "0" * 64}
        await ask("post", f"{one}/{word}", f"{nobodys}/{word}", 404, token=ana, body=seen)
        await ask("post", f"{one}/{word}", f"{nobodys}/{word}", 401, token=None, body=seen)
    many = {"approval_ids": [UNKNOWN_ID], "decision": "deny", "reason": "so"}
    await ask("post", f"{at}/batch", f"{at}/batch", 404, token=ana, body=many)
    await ask("post", f"{at}/batch", f"{at}/batch", 400, token=ana, body={**many, "approval_ids": []})
    learned, root = f"{at}/suggestions", checker.gateway.token("root", scopes=(ADMIN,))
    await ask("get", learned, f"{learned}?since=2026-01-01T00:00:00Z&days=7", 200, token=root)
    await ask("get", learned, f"{learned}?days=0", 400, token=root)
    await ask("get", learned, learned, 403, token=ana)


async def _check_policies(checker: OpenApiChecker) -> None:
    ask, ana, root = checker.request, checker.gateway.token(), checker.gateway.token("root", scopes=(ADMIN,))
    shown = await ask("get", "/v1/policies", "/v1/policies", 200, token=root)
    await ask("get", "/v1/policies", "/v1/policies", 403, token=ana)
    await ask("get", "/v1/policies/usage", "/v1/policies/usage", 200, token=root)
    await ask("get", "/v1/policies/usage", "/v1/policies/usage", 403, token=ana)
    same = {"files": shown["files"]}
    wrong = {"files": [{"path": "x.cedar", "text": "permit"}]}
    for verb, path in (("put", "/v1/policies"), ("post", "/v1/policies/check"), ("post", "/v1/policies/backtest")):
        await ask(verb, path, path, 200, token=root, body=same)
        await ask(verb, path, path, 400, token=root, body={"files": 1})
        await ask(verb, path, path, 200 if path.endswith("check") else 422, token=root, body=wrong)

    path, case = "/v1/policies/simulate", {"tool": "shop.get_user", "caller": {"user": "ana"}, "arguments": {"id": 7}}
    assert (await ask("post", path, path, 200, token=root, body=case))["behavior"] == "allow"
    await ask("post", path, path, 400, token=root, body={**case, "arguments": {"id": "x"}})
    await ask("post", path, path, 404, token=root, body={**case, "tool": "shop.nothing"})
    await ask("post", path, path, 403, token=ana, body=case)


async def _check_deprecations(checker: OpenApiChecker) -> None:
    gateway = checker.gateway
    ask, ana, root = checker.request, gateway.token(), gateway.token("root", scopes=(*SCOPES, ADMIN))
    ending, usage = (f"/v1/tools/{{name}}/versions/{{version}}/{each}" for each in ("deprecation", "usage"))
    at, url = "/v1/tools/shop.documented/versions", "https://docs.example/move"
    await ask("put", ending, f"{at}/1.2.0/deprecation", 200, token=root, body={"migration_guide": url})
    await ask("put", ending, f"{at}/1.2.0/deprecation", 400, token=root, body={"removal_date": "2020-01-01T00:00:00Z"})
    await ask("put", ending, f"{at}/9.9.9/deprecation", 404, token=root, body={})
    await ask("put", ending, f"{at}/1.2.0/deprecation", 403, token=ana, body={})
    await ask("get", usage, f"{at}/1.2.0/usage", 200, token=root)
    await ask("get", usage, f"{at}/1.2.0/usage", 403, token=ana)
    await ask("get", "/v1/tools/{name}", "/v1/tools/shop.documented", 200, token=ana)
    await ask("delete", ending, f"{at}/1.2.0/deprecation", 200, token=root)
    await ask("delete", ending, f"{at}/1.2.0/deprecation", 400, token=root)


async def _check_service_levels(checker: OpenApiChecker) -> None:
    gateway = checker.gateway
    ask, ana, root = checker.request, gateway.token(), gateway.token("root", scopes=(*SCOPES, ADMIN))
    levels, at = "/v1/tools/{name}/service-levels", "/v1/tools/shop.get_user/service-levels"
    await gateway.call("shop.get_user", {"id": 1})
    report = await ask("get", levels, f"{at}?days=30", 200, token=root)
    assert report["versions"][0]["calls"] >= 1
    await ask("get", levels, f"{at}?version=9.9.9", 404, token=root)
    await ask("get", levels, f"{at}?days=31", 400, token=root)
    await ask("get", levels, at, 403, token=ana)
    report = await ask("get", "/v1/tool-health", "/v1/tool-health", 200, token=root)
    assert "shop.get_user" in [each["tool"] for each in report["tools"]]
    await ask("get", "/v1/tool-health", "/v1/tool-health", 403, token=ana)
    assert (await ask("get", "/v1/cost", "/v1/cost?by=caller", 200, token=ana))["scope"] == "own"
    await ask("get", "/v1/cost", "/v1/cost?by=tenant", 400, token=root)
    await ask("get", "/v1/circuits", "/v1/circuits", 200, token=root)
    await ask("get", "/v1/circuits", "/v1/circuits", 403, token=ana)


async def _check_tools(checker: OpenApiChecker) -> None:
    gateway = checker.gateway
    ask, ana, root = checker.request, gateway.token(), gateway.token("root", scopes=(*SCOPES, ADMIN))
    await ask("get", "/v1/tools", "/v1/tools?limit=1", 200, token=ana)
    await ask("get", "/v1/surface", "/v1/surface?limit=3&worst=write", 200, token=ana)
    await ask("get", "/v1/surface", "/v1/surface?worst=nothing", 400, token=ana)
    await ask("get", "/v1/surface/export", "/v1/surface/export?limit=3", 200, token=ana)
    await ask("get", "/v1/tools/search", "/v1/tools/search?q=user", 200, token=ana)
    await ask("get", "/v1/tools/search", "/v1/tools/search?q=zzzz", 200, token=ana)
    await ask("get", "/v1/tools/{name}", "/v1/tools/shop.get_user", 200, token=ana)
    await ask("get", "/v1/tools/{name}", "/v1/tools/shop.nobody", 404, token=ana)
    await ask("get", "/v1/tools/{name}/versions", "/v1/tools/shop.get_user/versions", 200, token=ana)
    export = "/v1/tools/{name}/export"
    await ask("get", export, "/v1/tools/shop.get_user/export?format=openai-chat", 200, token=ana)
    await ask("get", export, "/v1/tools/shop.get_user/export?format=agent-tool", 200, token=root)
    await ask("get", export, "/v1/tools/shop.get_user/export", 400, token=ana)
    await ask("get", export, "/v1/tools/shop.nobody/export?format=gemini", 404, token=ana)
    negotiation, asked = "/v1/tools/{name}/negotiation", {"version": "^1", "output": {"optional_fields": ["/color"]}}
    await ask("post", negotiation, "/v1/tools/shop.get_user/negotiation", 200, token=ana, body=asked)
    await ask("post", negotiation, "/v1/tools/shop.get_user/negotiation", 200, token=ana, body={"version": "^9"})
    await ask("post", negotiation, "/v1/tools/shop.get_user/negotiation", 400, token=ana, body={"effects": "none"})
    await ask("post", negotiation, "/v1/tools/shop.nobody/negotiation", 404, token=ana, body={})
    declared = {**shop_tools.TOOLS[0].contract.model_dump(mode="json"), "name": "documented"}
    for status in (201, 200):
        await ask("post", "/v1/tools", "/v1/tools", status, token=root, body=declared)
    await ask("post", "/v1/tools", "/v1/tools", 403, token=ana, body=declared)
    await ask("post", "/v1/tools", "/v1/tools", 422, token=root, body={})
    state = "/v1/tools/{name}/versions/{version}/state"
    await ask(
        "post", state, "/v1/tools/shop.documented/versions/1.2.0/state", 200, token=root, body={"state": "disabled"}
    )
    await ask(
        "post", state, "/v1/tools/shop.documented/versions/9.9.9/state", 404, token=root, body={"state": "disabled"}
    )
    await ask("get", "/v1/tools/{name}", "/v1/tools/shop.documented", 409, token=ana)
    await _check_deprecations(checker)
    await _check_service_levels(checker)
    await ask("post", "/v1/revocations", "/v1/revocations", 201, token=root, body={"kind": "token", "value": "t"})
    await ask("post", "/v1/revocations", "/v1/revocations", 400, token=root, body={"kind": "all", "value": "t"})
    await ask("get", "/v1/revocations", "/v1/revocations", 200, token=root)
    await ask("get", "/v1/revocations", "/v1/revocations", 403, token=ana)
    erasure = await ask("post", "/v1/erasures", "/v1/erasures", 202, token=root, body={"user": "nobody-at-all"})
    await ask("post", "/v1/erasures", "/v1/erasures", 400, token=root, body={"user": ""})
    await ask("post", "/v1/erasures", "/v1/erasures", 403, token=ana, body={"user": "nobody-at-all"})
    shown = "/v1/erasures/{erasure_id}"
    await ask("get", shown, f"/v1/erasures/{erasure['erasure_id']}", 200, token=root)
    await ask("get", shown, "/v1/erasures/nothing", 404, token=root)
    await ask("get", shown, "/v1/erasures/nothing", 403, token=ana)
    await _check_holds(checker)


async def _check_holds(checker: OpenApiChecker) -> None:
    ask, ana, path = checker.request, checker.gateway.token(), "/v1/holds"
    root, held = checker.gateway.token("root", scopes=(*SCOPES, ADMIN)), {"reason": "case", "user": "held-person"}
    hold = await ask("post", path, path, 201, token=root, body=held)
    await ask("post", path, path, 400, token=root, body={"reason": "case"})
    await ask("post", path, path, 403, token=ana, body=held)
    await ask("get", path, path, 200, token=root)
    await ask("get", path, path, 403, token=ana)
    await ask("post", "/v1/erasures", "/v1/erasures", 409, token=root, body={"user": "held-person"})
    one = "/v1/holds/{hold_id}"
    await ask("delete", one, f"{path}/{hold['hold_id']}", 403, token=ana)
    await ask("delete", one, f"{path}/{hold['hold_id']}", 200, token=root)
    await ask("delete", one, f"{path}/nothing", 404, token=root)


async def _check_contract_tests(checker: OpenApiChecker) -> None:
    gateway = checker.gateway
    ask, ana, root = checker.request, gateway.token(), gateway.token("root", scopes=(*SCOPES, ADMIN))
    tests, tested = "/v1/tools/{name}/versions/{version}/tests", "/v1/tools/shop.get_user/versions/1.2.0/tests"
    digest = shop_tools.TOOLS[0].contract.digest
    red = {"report": {"digest": digest, "cases": [{"verdict": "failed"}]}}
    await ask("post", tests, tested, 201, token=root, body=red)
    await ask("post", tests, tested, 403, token=ana, body=red)
    await ask("post", tests, tested, 400, token=root, body={})
    await ask("post", tests, tested, 400, token=root, body={"attestation": "a.b.c"})
    await ask("get", tests, tested, 200, token=ana)
    await ask("get", tests, tested.replace("1.2.0", "9.9.9"), 404, token=ana)


async def _check_secrets(checker: OpenApiChecker) -> None:
    ask, at = checker.request, "/v1/secrets"
    ana, root = checker.gateway.token(), checker.gateway.token("root", scopes=(*SCOPES, ADMIN))
    for status in (201, 200):
        await ask("post", at, at, status, token=root, body={"name": "crm/key", "value": "long enough"})
    await ask("post", at, at, 400, token=root, body={"name": "crm/key", "value": "short"})
    await ask("get", at, at, 200, token=root)
    await ask("get", at, at, 403, token=ana)
    for status in (200, 424):
        await ask("delete", at, f"{at}?name=crm/key", status, token=root)


async def _check_identity(checker: OpenApiChecker) -> None:
    ask, ana = checker.request, checker.gateway.token()
    for path in ("oauth-protected-resource", "oauth-protected-resource/mcp", "oauth-client"):
        await ask("get", f"/.well-known/{path}", f"/.well-known/{path}", 200, token=None)
    for template in (
        "/t/{tenant}/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/t/{tenant}",
        "/t/{tenant}/jwks.json",
    ):  # fmt: skip
        await ask("get", template, template.format(tenant="dev"), 200, token=None)
        await ask("get", template, template.format(tenant="No"), 404, token=None)
    form = {
        "grant_type": TOKEN_EXCHANGE, "subject_token": ana, "subject_token_type": ACCESS_TOKEN, "agent": "bot",
        "tools": '[{"tool_id": "shop.get_user", "version_range": "^1"}]',
        "constraints": '{"environments": ["staging"]}', "ceiling": "read", "task": "reports", "scope": SCOPES[0],
    }  # fmt: skip
    lent = await ask("post", "/oauth/token", "/oauth/token", 200, token=None, form=form)
    await ask("post", "/oauth/token", "/oauth/token", 400, token=None, form={**form, "scope": "more"})
    await ask("post", "/oauth/token", "/oauth/token", 415, token=None, body=form)
    await ask("get", "/v1/grants", "/v1/grants", 200, token=ana)
    await ask("get", "/v1/grants", "/v1/grants?limit=0", 400, token=ana)
    await ask("get", "/v1/agents", "/v1/agents", 200, token=ana)
    await ask("get", "/v1/agents", "/v1/agents?limit=0", 400, token=ana)
    one, path = "/v1/grants/{grant_id}", f"/v1/grants/{lent['grant_id']}"
    for verb in ("get", "delete"):
        await ask(verb, one, path, 200, token=ana)
        await ask(verb, one, f"/v1/grants/{UNKNOWN_ID}", 404, token=ana)
        await ask(verb, one, path, 401, token=None)


async def _check_other_routes(checker: OpenApiChecker) -> None:
    ask, ana = checker.request, checker.gateway.token()
    await ask("post", "/rpc", "/rpc", 200, token=ana, body={"jsonrpc": "2.0", "id": 1, "method": "tools.list"})
    await ask("post", "/rpc", "/rpc", 200, token=ana, body=[{"jsonrpc": "2.0", "id": 1, "method": "nothing"}])
    await ask("post", "/rpc", "/rpc", 204, token=ana, body={"jsonrpc": "2.0", "method": "tools.list"})
    await ask("post", "/rpc", "/rpc", 401, token=None, body={})
    await ask("get", "/healthz", "/healthz", 200, token=None)
    await ask("get", "/readyz", "/readyz", 200, token=None)


@pytest.mark.requirement("CON-6")
async def test_every_problem_a_call_can_end_in_is_documented_for_it(gateway: HttpGateway) -> None:
    document = (await gateway.http.get("/openapi.json")).json()
    said = str(document["paths"]["/v1/calls"]["post"]["responses"])
    of_no_call = {"no-such-route", "method-not-allowed", "sign-in-failed"}
    assert set(re.findall(r"\(`([a-z-]+)`\)", said)) == {each.spec.slug for each in list_problem_types()} - of_no_call
