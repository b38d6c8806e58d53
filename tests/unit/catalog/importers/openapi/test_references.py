"""Documents that are referred to become part of the document, if they are allowed and not too many."""

from typing import Any

import orjson
import pytest

from deputize.catalog.importers.openapi import references
from deputize.catalog.importers.openapi.contracts import build_service
from deputize.catalog.importers.openapi.document import InvalidDocument, OpenApiDocument, parse_document
from deputize.catalog.importers.openapi.references import MAX_REFERENCED_DOCUMENTS, include_references
from tests.support.openapi_service import make_service

pytestmark = pytest.mark.requirement("EXE-1")
ADDRESS = "https://a.example/api/openapi.yaml"
SHARED = {
    "Item": {"type": "object", "properties": {"maker": {"$ref": "#/Maker"}, "root": {"$ref": "openapi.yaml#/x-top"}}},
    "Maker": {"type": "object", "properties": {"name": {"$ref": "more/names.yaml"}}, "required": ["name"]},
}


def make_document(reference: str) -> OpenApiDocument:
    responses = {"200": {"description": "It", "content": {"application/json": {"schema": {"$ref": reference}}}}}
    operation = {"operationId": "read", "summary": "Read it.", "responses": responses}
    content = {"openapi": "3.1.0", "x-top": {"type": "integer"}, "paths": {"/it": {"get": operation}}}
    return parse_document(orjson.dumps(content))


def include(reference: str, files: dict[str, Any], *, allowed: str = "https://a.example/api/") -> OpenApiDocument:
    def fetch(url: str) -> bytes:
        content = files[url]
        return content if isinstance(content, bytes) else orjson.dumps(content)

    return include_references(make_document(reference), ADDRESS, lambda url: url.startswith(allowed), fetch)


def build_output(document: OpenApiDocument) -> dict[str, Any]:
    service = make_service(credential="none", secret=None, security=None)
    built = build_service(service, document)
    assert not built.refusals
    return dict(built.contracts["read"].output_schema)


def test_a_chain_of_documents_is_included_once_and_read_like_one() -> None:
    files = {
        "https://a.example/api/shared.json": SHARED,
        "https://a.example/api/more/names.yaml": b"type: string\nminLength: 3\n",
    }
    document = include("shared.json#/Item", files)
    assert list(document.content["x-documents"]) == ["0", "1"]
    schema = build_output(document)
    definitions = schema["$defs"]
    assert definitions["Maker"]["required"] == ["name"]
    assert {"type": "string", "minLength": 3} in definitions.values()
    assert {"type": "integer"} in definitions.values()
    # The pinned copy needs nothing else.
    assert build_output(parse_document(orjson.dumps(document.content))) == schema


@pytest.mark.parametrize(
    "reference", ["https://b.example/x.json", "../x.json", "http://[", "//b.example/x", "file:///x"]
)
def test_what_is_not_allowed_is_not_read_and_refused_with_the_reason(reference: str) -> None:
    document = include(reference, {})
    assert "x-documents" not in document.content
    (refusal,) = build_service(make_service(credential="none", secret=None, security=None), document).refusals
    assert "another document" in refusal.reason
    assert "--allow-ref" in refusal.reason


def test_a_document_may_refer_to_itself_by_its_address() -> None:
    document = include(f"{ADDRESS}#/x-top", {})
    assert "x-documents" not in document.content
    build_output(document)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"[1]", "not an object"), (b"{", "not valid JSON"), (b"a: &a [1]\nb: *a\n", "YAML aliases")],
)
def test_a_document_that_cannot_be_read_is_named(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidDocument, match=reason):
        include("x.json", {"https://a.example/api/x.json": content})


def test_there_is_a_limit_to_how_many_and_how_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        f"https://a.example/api/{number}.json": {"$ref": f"{number + 1}.json"}
        for number in range(MAX_REFERENCED_DOCUMENTS + 1)
    }
    with pytest.raises(InvalidDocument, match="allow fewer"):
        include("0.json", files)
    monkeypatch.setattr(references, "MAX_DOCUMENT_BYTES", 1_000)
    with pytest.raises(InvalidDocument, match="allow fewer"):
        include("x.json", {"https://a.example/api/x.json": {"a": "b" * 1_000}})
    deep: Any = {"type": "object"}
    for _ in range(99):
        deep = {"not": deep}
    monkeypatch.undo()
    with pytest.raises(InvalidDocument, match="nested deeper"):
        include("x.json", {"https://a.example/api/x.json": deep})
