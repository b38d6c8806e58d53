"""HTTP tools that are written by hand: what ten lines of a manifest become, and what is refused."""

from typing import Any

import orjson
import pytest

from deputize.catalog.importers.http_manifest import build_http_manifest, parse_http_manifest
from deputize.catalog.importers.openapi.document import InvalidDocument
from deputize.core.contract.contract import Effects, UpstreamIdempotency
from tests.support.http_manifest import MANIFEST, make_manifest_service

pytestmark = pytest.mark.requirement("EXE-1")


def build(tool: dict[str, Any] | None = None, **settings: Any) -> Any:
    tools = parse_http_manifest(MANIFEST.encode() if tool is None else orjson.dumps(tool))
    return build_http_manifest(make_manifest_service(**settings), tools)


def make_tool(**more: Any) -> dict[str, Any]:
    numbers = {"type": "array", "items": {"type": "number"}}
    tool = {"name": "weather.report", "description": "Report the weather.", "http": "POST /cities/{city}/reports",
            "input_schema": {"properties": {"city": {"type": "string"}, "body": numbers}}}  # fmt: skip
    return {**tool, **more}


def test_ten_lines_are_a_contract() -> None:
    contract = build().contracts["forecast"]
    request = contract.handler.request
    assert (contract.full_name, contract.effects, request.method) == ("weather.forecast", Effects.READ, "GET")
    assert {each.argument: each.place for each in request.parameters} == {"city": "path", "days": "query"}
    assert contract.input_schema["required"] == ["city"]
    assert contract.input_schema["additionalProperties"] is False
    assert contract.native_ids.openapi.server_url == "https://weather.example"


def test_the_settings_say_where_the_credential_goes_and_who_may_call() -> None:
    contract = build(make_tool(), credential="vault", secret="weather", security="X-Api-Key").contracts["report"]
    assert (contract.effects, contract.auth.scopes) == (Effects.DESTRUCTIVE, ("weather:write",))
    assert contract.handler.request.credential.name == "X-Api-Key"
    assert contract.handler.request.body == "application/json"
    assert contract.idempotency.upstream is UpstreamIdempotency.CANNOT
    repeatable = build(make_tool(idempotency_header="Idempotency-Key", effects="write")).contracts["report"]
    assert repeatable.idempotency.upstream is UpstreamIdempotency.DEDUPLICATES


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (make_tool(http="FETCH /a"), "a method and a path"),
        (make_tool(http="GET /a/../b"), "its path does not begin"),
        (make_tool(http="GET /{planet}"), "planet"),
        (make_tool(name="other.report"), "weather.report"),
        (make_tool(auth={"credential": "vault"}), "its auth follows from the settings"),
        (make_tool(effects="none"), "effects"),
        (make_tool(description="short"), "description"),
    ],
)
def test_what_is_wrong_with_a_tool_is_said(tool: dict[str, Any], reason: str) -> None:
    service = build(tool)
    assert not service.contracts
    assert reason in service.refusals[0].reason


def test_a_tool_keeps_the_fields_of_the_response_that_it_names() -> None:
    body = {"type": "object", "properties": {"id": {"type": "string"}, "owner": {"type": "string"}}}
    output = {"type": "object", "properties": {"status": {"type": "integer"}, "body": body}}
    contract = build(make_tool(output_schema=output, response_fields=["/id"])).contracts["report"]
    assert contract.handler.request.response_fields == ("/id",)
    assert contract.output_schema["properties"]["body"]["properties"] == {"id": {"type": "string"}}
    for wrong in (["/name"], "/id", [7]):
        assert "response_fields" in build(make_tool(output_schema=output, response_fields=wrong)).refusals[0].reason


@pytest.mark.parametrize("content", [b"[]", b"tools: []", b"tools: [{http: GET /a}]", b"{name: a.b, http: 1}"])
def test_a_manifest_without_tools_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidDocument):
        parse_http_manifest(content)


def test_settings_that_a_manifest_says_itself_are_refused() -> None:
    with pytest.raises(ValueError, match="writes is for imported documents"):
        make_manifest_service(writes=("*",))
    with pytest.raises(ValueError, match="name of a header"):
        make_manifest_service(credential="vault", secret="weather", security="Host")
