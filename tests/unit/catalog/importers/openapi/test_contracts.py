"""Test contracts of OpenAPI operations: what the document says, what the settings say, and what is refused."""

from typing import Any

import orjson
import pytest

from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.importers.openapi.contracts import BuiltService, build_service, list_unknown_globs
from deputize.catalog.importers.openapi.document import iterate_operations, parse_document
from deputize.catalog.importers.openapi.security import choose_schemes
from deputize.catalog.importers.openapi.service_job import build_service_job
from deputize.catalog.policy_facts import list_facts, read_fact_values
from deputize.core.contract.contract import (
    DEFAULT_ERROR_SCHEMA,
    Contract,
    Effects,
    ToolKind,
    UpstreamIdempotency,
)
from deputize.operations.admin.policy.suggestions import list_unreadable_arguments
from tests.support.openapi_service import make_document, make_service

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.requirement("CON-3")]


def build(document: dict[str, Any] | None = None, **settings: Any) -> BuiltService:
    return build_service(make_service(**settings), parse_document(orjson.dumps(document or make_document())))


def build_one(operation: dict[str, Any], method: str = "get", path: str = "/a", **more: Any) -> BuiltService:
    document = make_document(paths={path: {method: {"operationId": "one", **operation}}}, **more)
    return build(document)


def get_reason(built: BuiltService) -> str:
    assert not built.contracts
    return built.refusals[0].reason


def get_contract(built: BuiltService) -> Contract:
    assert not built.refusals, built.refusals
    return next(iter(built.contracts.values()))


def test_an_operation_keeps_its_ids_and_its_request() -> None:
    made = build().contracts["getOrder"]
    assert (made.full_name, made.version, made.kind) == ("orders.get_order", "1.0.0", ToolKind.OPENAPI_OPERATION)
    assert made.native_ids is not None
    assert made.native_ids.model_dump() == {
        "openapi": {
            "operation_id": "getOrder", "method": "GET", "path": "/orders/{id}",
            "server_url": "https://orders.example/v1", "security_scheme_refs": ("token",),
        }
    }  # fmt: skip
    request = made.handler.request
    assert request is not None
    assert (made.handler.driver, made.handler.target, request.method) == ("http", "orders/getOrder", "GET")
    assert [(each.argument, each.place, each.style, each.explode) for each in request.parameters] == [
        ("id", "path", "simple", False), ("fields", "query", "form", True), ("X-Region", "header", "simple", False),
    ]  # fmt: skip
    assert request.credential is not None
    assert (request.credential.place, made.auth.credential, made.auth.secret) == ("bearer", "vault", "orders")


def test_effects_are_strict_until_the_settings_say_otherwise() -> None:
    assert {key: each.effects for key, each in build().contracts.items()} == {
        "getOrder": Effects.READ, "createOrder": Effects.DESTRUCTIVE, "changeOrder": Effects.DESTRUCTIVE,
        "deleteOrder": Effects.DESTRUCTIVE,
    }  # fmt: skip
    made = build(writes=("create*", "change*"), reads=("delete*",), destructive=("getOrder", "delete*")).contracts
    assert {key: each.effects for key, each in made.items()} == {
        "getOrder": Effects.DESTRUCTIVE, "createOrder": Effects.WRITE, "changeOrder": Effects.WRITE,
        "deleteOrder": Effects.DESTRUCTIVE,
    }  # fmt: skip
    assert made["createOrder"].auth.scopes == ("orders:write",)


def test_an_idempotency_header_is_the_gateways_own() -> None:
    made = build().contracts
    request = made["createOrder"].handler.request
    assert request is not None
    assert request.idempotency_header == "Idempotency-Key"
    assert list(made["createOrder"].input_schema["properties"]) == ["body"]
    assert made["createOrder"].idempotency.upstream is UpstreamIdempotency.DEDUPLICATES
    assert made["changeOrder"].idempotency.upstream is UpstreamIdempotency.CANNOT


def test_arguments_and_results_are_validated_as_the_document_says() -> None:
    tool = CompiledTool(build().contracts["createOrder"])
    # What only the service sets is no argument, and what it may leave empty may be null.
    valid = [{"body": {"item": "tea"}}, {"body": {"item": "tea", "note": None, "count": 2}}]
    invalid = [
        {}, {"body": {}}, {"body": {"item": "tea", "id": "7"}}, {"body": {"item": None}},
        {"body": {"item": "tea", "count": 2**31}}, {"body": {"item": "tea"}, "other": 1},
    ]  # fmt: skip
    assert [tool.is_valid_input(each) for each in (*valid, *invalid)] == [True] * 2 + [False] * 6
    output = tool.contract.output_schema
    assert output["required"] == ["status", "body"]
    assert output["$defs"]["Order"]["required"] == ["id", "item"]
    assert tool.contract.examples == ({"body": {"item": "tea"}},)


def test_only_the_selected_operations_are_imported() -> None:
    assert list(build(operations=("*Order",), excluded_operations=("delete*", "createOrder")).contracts) == [
        "getOrder", "changeOrder",
    ]  # fmt: skip
    assert list_unknown_globs(make_service(reads=("get*", "gte*")), ["getOrder"]) == ["gte*"]


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"servers": [{"url": "https://other.example"}]}, "server of its own"),
        ({"security": [{"other": []}]}, "needs the security scheme other"),
        ({"security": [{"token": [], "other": []}]}, "several credentials at once"),
        ({"parameters": [{"name": "q", "in": "query", "required": True, "content": {}}]}, "media type inside"),
        ({"parameters": [{"name": "q", "in": "query", "required": True, "style": "odd"}]}, "style odd"),
        ({"parameters": [{"name": "q", "in": "cookie", "required": True}]}, "cookie"),
        ({"parameters": [{"$ref": "other.json#/q"}]}, "another document"),
        ({"parameters": {}}, "not a list"),
        ({"parameters": [{"in": "query"}]}, "no name"),
        ({"requestBody": {"content": {"image/*": {}}}}, "image/*, which is not supported"),
        ({"requestBody": {"content": {"multipart/form-data": {}}}}, "multipart/form-data, which is not supported"),
        ({"requestBody": {"content": {"application/xml": {}}}}, "application/xml, which is not supported"),
        ({"requestBody": {"content": {"image/png": {"schema": {"type": "string", "maxLength": 9}}}}}, "not supported"),
        ({"requestBody": {"content": {"image/png": {"schema": {"type": "object"}}}}}, "image/png, which is not supp"),
        ({"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/none"}}}}}, "points to nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_represented_is_refused_with_the_reason(operation: dict[str, Any], reason: str) -> None:
    assert reason in get_reason(build_one(operation, "post"))


@pytest.mark.parametrize("path", ["a", "/a?b=1", "/a#b", "/a/../b", "/a/./b", "/a b", "/{id}", "/a\\b"])
def test_a_path_that_is_no_plain_path_is_refused(path: str) -> None:
    assert "path" in get_reason(build_one({}, path=path))


@pytest.mark.parametrize(
    ("media_type", "schema", "sent_type"),
    [
        ("image/png", {}, "image/png"),
        ("application/octet-stream", {"type": "string", "format": "binary"}, "application/octet-stream"),
        ("*/*", {"type": "string", "format": "binary", "description": "A file"}, "application/octet-stream"),
    ],
)
def test_a_binary_body_is_an_argument_in_base64(media_type: str, schema: dict[str, Any], sent_type: str) -> None:
    body = {"required": True, "description": "The picture.", "content": {media_type: {"schema": schema}}}
    contract = get_contract(build_one({"requestBody": body}, "post"))
    assert contract.handler.request is not None
    assert contract.handler.request.body == sent_type
    part = contract.input_schema["properties"]["body"]
    assert (part["type"], part["contentEncoding"]) == ("string", "base64")
    assert part["description"] == f"The picture. Bytes as base64, sent as {sent_type}."
    assert contract.input_schema["required"] == ["body"]


def test_trace_is_refused() -> None:
    assert "TRACE" in get_reason(build_one({}, "trace"))


def test_an_optional_part_that_cannot_be_sent_is_left_out_and_named() -> None:
    parameters = [{"name": "filter", "in": "query", "content": {"application/json": {}}}]
    made = get_contract(build_one({"parameters": parameters}))
    assert made.input_schema["properties"] == {}
    assert "the parameter filter is left out" in made.external_mappings["openapi"]["left_out"][0]


@pytest.mark.parametrize(
    ("name", "place"),
    [("X-HTTP-Method-Override", "header"), ("x_http_method", "header"), ("X-Method-Override", "query"),
     ("_method", "query")],
)  # fmt: skip
def test_no_argument_makes_another_operation_of_a_request(name: str, place: str) -> None:
    parameter = {"name": name, "in": place, "schema": {"type": "string"}}
    made = get_contract(build_one({"parameters": [parameter]}))
    assert made.input_schema["properties"] == {}
    assert name in made.external_mappings["openapi"]["left_out"][0]
    assert "another operation" in get_reason(build_one({"parameters": [{**parameter, "required": True}]}))


@pytest.mark.parametrize(
    ("scheme", "name", "place", "is_refused"),
    [
        ({"type": "apiKey", "in": "header", "name": "X-Api-Key"}, "X_Api_Key", "header", True),
        ({"type": "apiKey", "in": "query", "name": "api_key"}, "apiKey", "query", True),
        # The credential takes the place of this one.
        ({"type": "apiKey", "in": "header", "name": "X-Api-Key"}, "x-api-key", "header", False),
        ({"type": "apiKey", "in": "header", "name": "X-Api-Key"}, "X_Api_Key", "query", False),
    ],
)
def test_no_argument_stands_beside_the_credential_in_another_spelling(
    scheme: dict[str, str], name: str, place: str, is_refused: bool
) -> None:
    parameters = [{"name": name, "in": place, "schema": {"type": "string"}}]
    operation = {"operationId": "one", "parameters": parameters, "security": [{"key": []}]}
    document = make_document(paths={"/a": {"get": operation}}, components={"securitySchemes": {"key": scheme}})
    built = build(document, security="key")
    assert [f"has {name}, which services may take for the credential" in each.reason for each in built.refusals] == (
        [True] if is_refused else []
    )


def test_arguments_of_one_name_in_several_places_are_told_apart() -> None:
    parameters = [
        {"name": name, "in": place, "required": True, "schema": {"type": "string"}}
        for name, place in (("id", "path"), ("id", "query"), ("filter[name]", "query"), ("body", "query"))
    ]
    made = get_contract(build_one({"parameters": parameters}, path="/a/{id}"))
    assert list(made.input_schema["properties"]) == ["id", "query_id", "filter_name", "query_body"]


def test_definitions_that_refer_to_themselves_are_kept() -> None:
    node = {"type": "object", "properties": {"child": {"$ref": "#/components/schemas/Node"}, "n": {"type": "integer"}}}
    document = make_document()
    document["components"]["schemas"]["Node"] = node
    document["paths"] = {
        "/n": {"post": {"operationId": "one", "requestBody": {"required": True, "content": {"application/json": {
            "schema": {"$ref": "#/components/schemas/Node"}}}}}}
    }  # fmt: skip
    tool = CompiledTool(get_contract(build(document)))
    assert tool.is_valid_input({"body": {"child": {"child": {"n": 1}}}})
    assert not tool.is_valid_input({"body": {"child": {"child": {"n": "x"}}}})


def test_a_service_that_declares_no_security_can_still_have_a_credential() -> None:
    document = make_document(security=[], components={"schemas": make_document()["components"]["schemas"]})
    assert build(document, security="bearer").contracts["getOrder"].auth.credential == "vault"
    assert build(document, security=None, credential="none").contracts["getOrder"].auth.credential == "none"


def test_security_that_is_no_list_refuses_its_operation_and_no_other() -> None:
    document = parse_document(orjson.dumps(make_document(security={"token": []})))
    assert choose_schemes(document, list(iterate_operations(document))) == ()
    assert get_reason(build_one({"security": {"token": []}})) == "its security is not a list"


def test_names_and_versions_of_registered_tools_are_kept() -> None:
    generated = parse_document(
        orjson.dumps(make_document(paths={"/pets": {"get": {"operationId": "list_pets_pets_get"}}}))
    )
    key = "list_pets_pets_get"
    assert build_service(make_service(), generated, existing_names={key: key}).contracts[key].name == key
    document = parse_document(orjson.dumps(make_document()))
    made = build_service(
        make_service(), document, existing_names={"getOrder": "read_it"}, newest_versions={"read_it": "3.1.0"}
    ).contracts["getOrder"]
    assert (made.full_name, made.version) == ("orders.read_it", "3.1.0")


def test_the_job_returns_the_same_contracts_or_the_reason() -> None:
    header = orjson.dumps({"service": make_service().model_dump(mode="json"), "names": {}, "versions": {}})
    reply = build_service_job(header + b"\n" + orjson.dumps(make_document()))
    raw = orjson.loads(reply[1:])["contracts"]["getOrder"]
    assert Contract.model_validate_json(raw).digest == build().contracts["getOrder"].digest
    assert (
        build_service_job(header + b"\n[]") == b"-the document is not OpenAPI 3.0 or 3.1: its field openapi must say so"
    )


def test_headers_with_credentials_are_no_part_of_a_result() -> None:
    declared = {
        name: {"schema": {"type": "string"}} for name in ("X-Total", "Set-Cookie", "set-cookie2", "Authorization")
    }
    request = get_contract(build_one({"responses": {"200": {"description": "", "headers": declared}}})).handler.request
    assert request is not None
    assert request.response_headers == ("Location", "Link", "ETag", "X-Total")


def test_a_schema_of_errors_applies_to_its_own_status() -> None:
    def describe(**names: str) -> dict[str, Any]:
        errors = {
            status.lstrip("s"): {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}
            for status, name in names.items()
        }
        return {"responses": {"204": {"description": "Done"}, "403": {"description": "No"}, **errors}}

    components = {"schemas": {"Fault": {"type": "object", "required": ["code"]}, "Other": {"type": "string"}}}

    def list_valid(*cases: tuple[int, Any], **names: str) -> list[bool]:
        contract = get_contract(build_one(describe(**names), components=components, security=[]))
        error = CompiledTool(contract).error
        assert error is not None
        return [
            error.is_valid({"message": "No", "details": {"status": status, "body": body}}) for status, body in cases
        ]

    fault, other = {"code": 7}, "gone"
    assert list_valid((422, fault), (422, other), (404, other), (403, other), s422="Fault") == [True, False, True, True]
    # The status before its range, and the range before the default.
    cases = ((404, fault), (404, other), (409, fault), (409, other), (403, fault), (403, 7))
    expected = [True, False, False, True, True, True]
    assert list_valid(*cases, s404="Fault", s4xx="Other", default="Fault") == expected
    assert list_valid(*cases, s404="Fault", default="Other") == expected
    assert list_valid((404, fault), (404, other), s404="Fault", s409="Fault") == [True, False]
    for names in ({"s404": "Missing"}, {"s500": "Fault"}, {}):
        untyped = get_contract(build_one(describe(**names), components=components, security=[]))
        assert untyped.error_schema == DEFAULT_ERROR_SCHEMA


def test_a_generated_operation_id_becomes_the_functions_name() -> None:
    def name(paths: dict[str, dict[str, str]], **settings: Any) -> dict[str, str]:
        items = {path: {method: {"operationId": key} for method, key in each.items()} for path, each in paths.items()}
        parameters = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
        document = make_document(
            paths={
                path: {**each, **({"parameters": parameters} if "{id}" in path else {})} for path, each in items.items()
            }
        )
        return {key: each.name for key, each in build(document, **settings).contracts.items()}

    paths = {
        "/pets": {"get": "list_pets_pets_get", "post": "create_pet_pets_post"},
        "/pets/{id}": {"delete": "delete_pet_pets__id__delete", "get": "readPet"},
    }
    assert name(paths) == {
        "list_pets_pets_get": "list_pets", "create_pet_pets_post": "create_pet",
        "delete_pet_pets__id__delete": "delete_pet", "readPet": "read_pet",
    }  # fmt: skip
    # The same function name in two paths, also where only one of them is served.
    paths = {"/a": {"get": "read_a_get"}, "/b": {"get": "read_b_get"}}
    assert name(paths) == {"read_a_get": "read_a_get", "read_b_get": "read_b_get"}
    assert name(paths, operations=("read_a_get",)) == {"read_a_get": "read_a_get"}
    assert name({"/a": {"get": "read_a_get"}, "/b": {"get": "Read"}}) == {"read_a_get": "read_a_get", "Read": "read"}


def test_members_of_a_body_are_facts_also_where_operations_share_its_definition() -> None:
    document = make_document()
    # What a document marks itself is no fact.
    document["components"]["schemas"]["Order"]["properties"] = {
        **document["components"]["schemas"]["Order"]["properties"],
        "note": {"type": "string", "x-policy": "remark"},
    }
    facts = {
        "amount": {"argument": "arguments.body.count", "type": "integer"},
        "item": "arguments.body.item",
        "absent": "arguments.body.price",
    }
    built = build(document, facts=facts)
    create, change = CompiledTool(built.contracts["createOrder"]), CompiledTool(built.contracts["changeOrder"])
    for tool in (create, change):
        assert sorted(each.name for each in list_facts(tool.contract)) == ["amount", "item"]
    order = {"item": "tea", "count": 7}
    assert read_fact_values(list_facts(create.contract), {"body": order}) == {"amount": 7, "item": "tea"}
    assert read_fact_values(list_facts(create.contract), {"body": {"item": "tea"}}) == {"item": "tea"}
    # What the definition demands is still demanded, and a path is accepted in its normal form alone.
    assert create.is_valid_input({"body": order})
    assert not create.is_valid_input({"body": {"count": 7}})
    assert not create.is_valid_input({"body": {"item": "/srv/../tea"}})
    # The rest of the body is something that no rule can read.
    assert list_unreadable_arguments(create.contract) == ("body",)
    assert list_facts(built.contracts["getOrder"]) == ()
