"""HTTP services as governed tools: registered from their pinned document, called through the whole lifecycle."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from deputize.app import open_gateway
from deputize.core.settings import ServiceSettings, Settings
from tests.integration.conftest import ADMIN, HttpGateway, gateway_settings, serve_gateway
from tests.support.gateway_internals import get_runtime
from tests.support.openapi_service import NAME, OpenApiService, make_document, make_service, open_service

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.asyncio(loop_scope="session")]
SECRET = "correct-horse-battery-staple"
GET, CREATE, CHANGE, DELETE = (f"{NAME}.{name}_order" for name in ("get", "create", "change", "delete"))

STATUSES = {
    400: "tool-failed", 404: "tool-precondition", 409: "tool-conflict", 412: "tool-precondition",
    422: "semantic-violation", 401: "credential-expired", 302: "outcome-unknown",
    500: "outcome-unknown", 504: "outcome-unknown", 429: "upstream-rate-limited",
}  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def service() -> AsyncIterator[OpenApiService]:
    async with open_service() as running:
        yield running


def write_document(folder: Path, document: dict[str, Any] | None = None) -> Path:
    file = folder / "orders.json"
    file.write_text(json.dumps(document or make_document()))
    return file


@asynccontextmanager
async def open_services(dsn: str, folder: Path, *services: ServiceSettings) -> AsyncIterator[HttpGateway]:
    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"services": services})

    async with serve_gateway(dsn, folder, change=change, gateway_options={"tools": ()}) as gateway:
        stored = await gateway.post("/v1/secrets", {"name": NAME, "value": SECRET}, token=get_token(gateway))
        assert stored.status_code in (200, 201), stored.text
        yield gateway


def get_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(f"{NAME}:write", ADMIN))


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(fresh_database: str, tmp_path: Path, service: OpenApiService) -> AsyncIterator[HttpGateway]:
    settings = make_service(write_document(tmp_path), url=service.url)
    async with open_services(fresh_database, tmp_path, settings) as opened:
        yield opened


async def call(gateway: HttpGateway, tool: str, key: str | None = None, **arguments: Any) -> httpx2.Response:
    return await gateway.call(tool, arguments, token=get_token(gateway), key=key)


async def fetch_versions(gateway: HttpGateway, tool: str) -> dict[str, str]:
    answer = await gateway.get(f"/v1/tools/{tool}/versions", token=get_token(gateway))
    return {each["version"]: each["state"] for each in answer.json()["versions"]}


async def test_a_read_becomes_the_request_that_the_document_describes(
    gateway: HttpGateway, service: OpenApiService
) -> None:
    service.answer(200, {"id": "a b", "item": "tea"}, link="<x>; rel=next", x_other="no")
    arguments = {"id": "a b", "fields": ["id", "item"], "X-Region": "eu"}
    answer = await gateway.call(GET, arguments, token=get_token(gateway))
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"] == {
        "status": 200, "body": {"id": "a b", "item": "tea"}, "headers": {"link": "<x>; rel=next"},
    }  # fmt: skip
    assert answer.json()["pagination"] == {"cursor": None, "has_more": True, "total_count": None}
    sent = service.requests[-1]
    assert (sent.method, sent.path) == ("GET", "/v1/orders/a%20b?fields=id&fields=item")
    assert sent.headers["authorization"] == f"Bearer {SECRET}"
    assert sent.headers["x-region"] == "eu"


async def test_keys_that_are_needed_together_are_sent_together_and_kept_out_of_results(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    document = make_document(security=[{"token": [], "app": []}])
    document["components"]["securitySchemes"]["app"] = {"type": "apiKey", "in": "query", "name": "app"}
    settings = make_service(write_document(tmp_path, document), url=service.url, further_secrets={"app": "orders-app"})
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        missing = await call(gateway, GET, id="7")
        assert missing.json()["error"]["slug"] == "credential-missing", missing.text
        assert service.requests == []
        app_key = "second-horse-battery-staple"
        await gateway.post("/v1/secrets", {"name": "orders-app", "value": app_key}, token=get_token(gateway))
        assert (await call(gateway, GET, id="7")).status_code == 200
        sent = service.requests[-1]
        assert (sent.path, sent.headers["authorization"]) == (f"/v1/orders/7?app={app_key}", f"Bearer {SECRET}")
        service.answer(200, {"id": "7", "item": f"your key is {app_key}"})
        told = await call(gateway, GET, id="7")
        assert (told.json()["error"]["slug"], app_key in told.text) == ("credential-quoted", False)


async def test_a_repeated_write_is_sent_once_and_its_key_is_handed_on(
    gateway: HttpGateway, service: OpenApiService
) -> None:
    service.answer(201, {"id": "7", "item": "tea"}, location="/orders/7")
    first = await call(gateway, CREATE, "once", body={"item": "tea"})
    again = await call(gateway, CREATE, "once", body={"item": "tea"})
    assert first.status_code == 200, first.text
    assert first.json()["result"] == again.json()["result"]
    assert first.json()["result"]["headers"] == {"location": "/orders/7"}
    assert [each.headers["idempotency-key"] for each in service.requests] == [first.json()["call_id"]]
    assert service.requests[0].body == b'{"item":"tea"}'


async def test_a_lost_answer_is_an_unknown_outcome_only_where_it_may_have_acted(
    gateway: HttpGateway, service: OpenApiService
) -> None:
    service.lose_answer()
    lost = await call(gateway, CHANGE, "lost", id="7", body={"item": "tea"})
    assert lost.json()["error"]["slug"] == "outcome-unknown", lost.text
    assert len(service.requests) == 1
    # A read is simply made again.
    service.lose_answer()
    assert (await call(gateway, GET, id="7")).status_code == 200


async def test_the_settings_say_when_calls_are_repeated_pause_and_need_not_be_made(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    settings = make_service(
        write_document(tmp_path),
        url=service.url,
        breaker={"failure_threshold": 2, "timeout_seconds": 600},
        retry={"get*": {"max_attempts": 2, "base_seconds": 0.01}, "*": {"max_attempts": 1}},
        freshness={"*": {"max_age_seconds": 300}},
    )
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        service.answer(200, {"id": "7", "item": "tea"})
        first, again = await call(gateway, GET, id="7"), await call(gateway, GET, id="7")
        assert (again.json()["result"], len(service.requests)) == (first.json()["result"], 1), again.text
        assert again.json()["provenance"]["is_cached"]
        # Two attempts fail, so that the circuit opens.
        service.answer(503)
        service.answer(503)
        failed = await call(gateway, GET, id="8")
        assert (failed.json()["error"]["slug"], len(service.requests)) == ("upstream-unavailable", 3), failed.text
        paused = await call(gateway, CREATE, "paused", body={"item": "tea"})
        assert (paused.json()["error"]["slug"], len(service.requests)) == ("circuit-open", 3), paused.text
        assert (await call(gateway, GET, id="7")).json()["provenance"]["is_cached"]


async def test_a_status_of_the_service_is_the_problem_that_it_means(
    gateway: HttpGateway, service: OpenApiService
) -> None:
    for status, slug in STATUSES.items():
        service.requests.clear()
        body = {"error": {"message": f"no: {SECRET}"}}
        service.answers = [(status, {"retry-after": "3600", "location": "http://evil.example/"}, body)] * 5
        refused = await call(gateway, DELETE, f"status-{status}", id="7")
        assert refused.json()["error"]["slug"] == slug, refused.text
        assert SECRET not in refused.text
        assert len(service.requests) == 1, "a redirect is not followed, and a write is not repeated"
        if status == 429:
            assert refused.json()["error"]["retry_after_ms"] == 3_600_000


async def test_a_result_that_is_not_what_the_document_says_is_refused(
    gateway: HttpGateway, service: OpenApiService
) -> None:
    service.answer(200, {"id": 7})
    assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "result-invalid"
    service.answer(200, b"{not json", content_type="application/json")
    assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "result-invalid"
    service.answer(200, {"id": "7", "item": SECRET})
    assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "credential-quoted"
    service.answer(200, b"x" * 2_000_000, content_type="text/plain")
    assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "resource-limit"


async def test_an_error_that_is_not_what_the_document_says_is_passed_on_as_it_is(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    # FastAPI declares the schema of its 422 alone.
    document = make_document()
    error = {"type": "object", "required": ["detail"], "properties": {"detail": {"type": "array"}}}
    content = {"description": "No", "content": {"application/json": {"schema": error}}}
    document["paths"]["/orders/{id}"]["get"]["responses"] = {"200": {"description": "The order"}, "422": content}
    settings = make_service(write_document(tmp_path, document), url=service.url)
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        service.answer(404, {"detail": "no such pet"})
        missing = (await call(gateway, GET, id="7")).json()["error"]
        assert (missing["slug"], missing["details"]) == (
            "tool-precondition", {"status": 404, "body": {"detail": "no such pet"}},
        )  # fmt: skip
        assert "no such pet" in missing["message"]
        service.answer(422, {"detail": "the token is password=tr0ub4dor"})
        violating = (await call(gateway, GET, id="7")).json()["error"]
        assert (violating["slug"], violating["details"]["violates"]) == ("semantic-violation", "error_schema")
        assert "the token is" in violating["message"]
        assert "tr0ub4dor" not in str(violating)


async def test_a_rule_reads_the_argument_that_the_service_gets(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    document = make_document()
    folder = {"name": "folder", "in": "query", "schema": {"type": "string", "default": "/"}}
    document["paths"]["/orders/{id}"]["get"]["parameters"].append(folder)
    settings = make_service(
        write_document(tmp_path, document), url=service.url, record_arguments=True,
        facts={"folder": {"argument": "arguments.folder", "type": "path"}},
    )  # fmt: skip
    rules = f"""
        @id("public") permit (principal, action == Action::"call", resource == Tool::"{GET}")
        when {{ context.facts has folder && context.facts.folder like "/srv/*" && context.facts has id_text
               && context.facts.id_text != "7" }};
    """
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        headers = {"Authorization": f"Bearer {get_token(gateway)}"}
        files = {"files": [{"path": "a.cedar", "text": rules}]}
        put = await gateway.http.put("/v1/policies", json=files, headers=headers)
        assert put.status_code == 200, put.text
        assert (await call(gateway, GET, id="8", folder="/srv/a")).status_code == 200
        assert service.requests[-1].path == "/v1/orders/8?folder=%2Fsrv%2Fa"
        service.requests.clear()
        for refused in ({"id": "7", "folder": "/srv/a"}, {"id": "8", "folder": "/etc"}, {"id": "8"}):
            assert (await call(gateway, GET, **refused)).status_code == 403
        climbing = await call(gateway, GET, id="8", folder="/srv/../etc")
        assert climbing.json()["error"]["slug"] == "schema-violation", climbing.text
        assert service.requests == []


async def test_only_the_named_fields_of_a_response_are_kept(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    settings = make_service(
        write_document(tmp_path), url=service.url, response_fields={"get*": ["/item"], "change*": ["/price"]}
    )
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        service.answer(200, {"id": "7", "item": "tea", "note": "for Ana only", "has_more": True})
        answer = await call(gateway, GET, id="7")
        assert answer.json()["result"] == {"status": 200, "body": {"item": "tea"}}
        assert "Ana" not in answer.text
        for wrong in ("text", ["x"], {"item": 7}):
            service.answer(200, wrong)
            assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "result-invalid"
        service.answer(200, b"for Ana only", content_type="text/plain")
        assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "result-invalid"
        # The document knows no price of an order.
        assert (await call(gateway, CHANGE, id="7", body={"item": "tea"})).json()["error"]["slug"] == "tool-not-found"


async def test_arguments_cannot_call_another_operation(gateway: HttpGateway, service: OpenApiService) -> None:
    for value in ("..", "../admin", "a/../../admin", "7/export", "7\\export"):
        refused = await call(gateway, DELETE, value, id=value)
        assert refused.json()["error"]["slug"] == "semantic-violation", refused.text
    padded = await gateway.call(GET, {"id": "7", "X-Region": "eu "}, token=get_token(gateway))
    assert padded.json()["error"]["slug"] == "semantic-violation", padded.text
    assert service.requests == []


async def test_redirects_fail_reads_and_pause_no_calls(gateway: HttpGateway, service: OpenApiService) -> None:
    service.answers = [(303, {"location": "/v1/orders/7"}, b"")] * 7
    for number in range(6):
        unknown = await call(gateway, DELETE, f"redirect-{number}", id="7")
        assert unknown.json()["error"]["slug"] == "outcome-unknown", unknown.text
    assert (await call(gateway, GET, id="7")).json()["error"]["slug"] == "tool-failed"
    assert (await call(gateway, DELETE, "after", id="7")).status_code == 200


async def test_an_argument_cannot_take_the_place_of_the_credential(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    document = make_document()
    document["components"]["securitySchemes"]["token"] = {"type": "apiKey", "in": "header", "name": "X-Region"}
    document["paths"]["/orders/{id}"]["get"]["parameters"][1]["name"] = "x-REGION"
    settings = make_service(write_document(tmp_path, document), url=service.url)
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        sent = await gateway.call(GET, {"id": "7", "x-REGION": "theirs"}, token=get_token(gateway))
        assert sent.status_code == 200, sent.text
        assert service.requests[-1].lines.count("x-region") == 1
        assert service.requests[-1].headers["x-region"] == SECRET


async def test_a_service_that_cannot_be_reached_has_done_nothing(fresh_database: str, tmp_path: Path) -> None:
    async with open_service() as gone:
        url = gone.url
    async with open_services(fresh_database, tmp_path, make_service(write_document(tmp_path), url=url)) as gateway:
        refused = await call(gateway, DELETE, "unreached", id="7")
        assert refused.json()["error"]["slug"] == "upstream-unavailable", refused.text


async def test_a_reviewed_change_of_the_document_becomes_new_versions(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    file = write_document(tmp_path)
    settings = make_service(file, url=service.url)
    async with open_services(fresh_database, tmp_path, settings) as gateway:
        assert await fetch_versions(gateway, GET) == {"1.0.0": "available"}
    document = make_document()
    del document["paths"]["/orders"]
    document["paths"]["/orders/{id}"]["get"]["parameters"].pop()
    write_document(tmp_path, document)
    # The digest in the settings is the review: without it nothing changes, and the start says so.
    unreviewed = gateway_settings(fresh_database, tmp_path).model_copy(update={"services": (settings,)})
    async with open_gateway(unreviewed, development=True) as opened:
        assert "has another digest" in opened.startup_problems[0].message
        tools = (await get_runtime(opened).authority.load_tenant("dev")).tools
        assert [each.version for each in tools.tools[GET].versions] == ["1.0.0"]
    reviewed = make_service(file, url=service.url, writes=("changeOrder",))
    for _ in range(2):
        async with open_services(fresh_database, tmp_path, reviewed) as gateway:
            assert await fetch_versions(gateway, GET) == {"2.0.0": "available", "1.0.0": "retired"}
            assert await fetch_versions(gateway, CHANGE) == {"1.1.0": "available", "1.0.0": "retired"}
            assert await fetch_versions(gateway, DELETE) == {"1.0.0": "available"}
            assert await fetch_versions(gateway, CREATE) == {"1.0.0": "retired"}


async def test_a_contract_and_settings_that_differ_send_nothing(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    file = write_document(tmp_path)
    async with (
        open_services(fresh_database, tmp_path, make_service(file, url=service.url)) as first,
        open_services(fresh_database, tmp_path, make_service(file, url=service.url + "/new")) as second,
    ):
        assert (await call(second, GET, id="7")).status_code == 200
        refused = await call(first, GET, id="7")
        assert refused.json()["error"]["slug"] == "requires-setup", refused.text
        assert [each.path for each in service.requests] == ["/v1/new/orders/7"]


async def test_the_service_of_one_tenant_is_no_tool_of_another(gateway: HttpGateway, service: OpenApiService) -> None:
    token = gateway.other_token(scopes=(f"{NAME}:write",))
    refused = await gateway.call(GET, {"id": "7"}, token=token)
    assert refused.json()["error"]["slug"] == "tool-not-found", refused.text
    assert service.requests == []


async def test_results_that_are_no_longer_shared_are_not_shared_by_an_old_version(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    file = write_document(tmp_path)
    versions = {"1.0.0": "available"}
    for number, fields in enumerate(({"shared_by": "tenant"}, {"shared_by": "caller"}, {"shared_by": "caller"})):
        freshness = {"get*": {"max_age_seconds": 60 + number, **fields}}
        settings = make_service(file, url=service.url, freshness=freshness)
        async with open_services(fresh_database, tmp_path, settings) as gateway:
            versions = await fetch_versions(gateway, GET)
    assert versions == {"1.2.0": "available", "1.1.0": "deprecated", "1.0.0": "retired"}


async def test_an_operation_that_moved_is_not_called_at_its_old_path(
    fresh_database: str, tmp_path: Path, service: OpenApiService
) -> None:
    file = write_document(tmp_path)
    async with open_services(fresh_database, tmp_path, make_service(file, url=service.url)) as gateway:
        assert await fetch_versions(gateway, GET) == {"1.0.0": "available"}
    document = make_document()
    paths = document["paths"]
    paths["/archive/{id}"] = {key: paths["/orders/{id}"].pop(key) for key in ("get",)}
    paths["/archive/{id}"]["parameters"] = paths["/orders/{id}"]["parameters"]
    write_document(tmp_path, document)
    async with open_services(fresh_database, tmp_path, make_service(file, url=service.url)) as gateway:
        assert await fetch_versions(gateway, GET) == {"2.0.0": "available", "1.0.0": "retired"}
        assert (await call(gateway, GET, id="7")).status_code == 200
        assert [each.path for each in service.requests] == ["/v1/archive/7"]
