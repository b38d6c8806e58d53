"""Test parsing of OpenAPI documents, and of documents that are meant to do harm."""

import pytest

from deputize.catalog.importers.openapi.document import (
    MAX_DOCUMENT_BYTES,
    InvalidDocument,
    UnsupportedOperation,
    find_server_url,
    iterate_operations,
    parse_document,
)

pytestmark = pytest.mark.requirement("EXE-1")
HEAD = b"openapi: 3.0.3\ninfo: {title: T, version: '1'}\n"


def test_yaml_and_json_are_one_document() -> None:
    text = HEAD + b"paths:\n  /a:\n    get:\n      responses:\n        200: {description: yes}\n"
    parsed = parse_document(text).content
    # Status codes become texts, and words of YAML 1.1 stay what they are.
    assert parsed["paths"]["/a"]["get"]["responses"] == {"200": {"description": "yes"}}
    assert parsed["info"] == {"title": "T", "version": "1"}
    assert parse_document(b"openapi: 3.1.0\nx-day: 2024-01-01\nx-none: null\n").content["x-day"] == "2024-01-01"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"swagger": "2.0"}', "Swagger 2.0"),
        (b'{"openapi": "4.0.0"}', "not OpenAPI 3.0 or 3.1"),
        (b"[]", "not OpenAPI 3.0 or 3.1"),
        (b'{"openapi": "3.0.0", "paths": []}', "paths is not an object"),
        (b'{"openapi": ', "not valid JSON"),
        (b"a: [", "not valid YAML"),
        (b"\xff\xfe\x00", "not valid YAML"),
        (b"x: !!python/object/apply:os.system [ls]", "not valid YAML"),
        (b"a: &a [1]\nb: [*a, *a]\n", "YAML aliases"),
        (b"a: &a [*a]\n", "YAML aliases"),
        (b"{" + b" " * MAX_DOCUMENT_BYTES, "larger than 16 MB"),
        (b"# " + b"x" * 5_000_000, "larger than 4 MB"),
        (b'{"openapi": "3.0.0", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "nested deeper"),
        (b"x: " + b"[" * 150 + b"]" * 150, "nested deeper"),
        # Deep enough to end a process that builds it.
        (b"x: " + b"[" * 100_000, "nested deeper"),
        (b"x: " + b"{a: " * 100_000, "nested deeper"),
    ],
)  # fmt: skip
def test_a_document_that_cannot_be_used_says_why(content: bytes, reason: str) -> None:
    with pytest.raises(InvalidDocument, match=reason):
        parse_document(content)


def test_aliases_do_not_expand() -> None:
    bomb = b"a0: &a0 [x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 40)
    )
    with pytest.raises(InvalidDocument, match="YAML aliases"):
        parse_document(HEAD + bomb)
    merges = b"a0: &a0 {k: 1}\n" + b"".join(
        b"a%d: &a%d {!!merge <<: [%s]}\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 40)
    )
    with pytest.raises(InvalidDocument):
        parse_document(HEAD + merges)


def test_references_stay_inside_the_document_and_end() -> None:
    document = parse_document(
        b'{"openapi": "3.0.0", "a b": {"$ref": "#/c"}, "c": {"ok": 1}, "x": {"$ref": "#/y"}, "y": {"$ref": "#/x"}}'
    )
    assert document.resolve({"$ref": "#/a%20b"}) == {"ok": 1}
    for reference, reason in (
        ("#/x", "loop"),
        ("#/missing", "points to nothing"),
        ("https://evil.example/x.json#/a", "another document"),
        ("other.yaml#/a", "another document"),
        ("file:///etc/passwd", "another document"),
    ):
        with pytest.raises(UnsupportedOperation, match=reason):
            document.resolve({"$ref": reference})


def test_operations_without_an_id_of_their_own_are_named_by_method_and_path() -> None:
    document = parse_document(
        b'{"openapi": "3.0.0", "paths": {"/a": {"get": {"operationId": "x"}, "put": {"operationId": "x"}, '
        b'"post": {}, "delete": {"operationId": "drop"}, "parameters": []}}}'
    )
    assert [each.key for each in iterate_operations(document)] == ["GET /a", "PUT /a", "POST /a", "drop"]


def test_the_first_server_is_the_default_url() -> None:
    document = parse_document(
        b'{"openapi": "3.0.0", "servers": [{"url": "https://{region}.example/v1/", "variables": {"region": '
        b'{"default": "eu"}}}]}'
    )
    assert find_server_url(document) == "https://eu.example/v1"
    relative = parse_document(b'{"openapi": "3.0.0", "servers": [{"url": "/v1"}]}')
    assert find_server_url(relative) is None
    assert find_server_url(relative, "https://a.example") == "https://a.example/v1"
