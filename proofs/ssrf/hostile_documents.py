"""Make hostile documents: answers that are cheap to send and expand, never end, or lead elsewhere when read."""

from collections.abc import Iterator

import orjson

_DEPTH = 50_000
_LONG = 20_000_000


def _build_yaml_bomb(levels: int, width: int) -> bytes:
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(["openapi: 3.0.0", *lines, f"paths: *a{levels - 1}"]).encode()


def _build_merge_bomb(levels: int) -> bytes:
    lines = ["x0: &x0 {k: v}"]
    lines += [f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}, *x{n - 1}]}}" for n in range(1, levels)]
    return "\n".join(["openapi: 3.0.0", *lines, "paths: {}"]).encode()


def list_hostile_documents() -> Iterator[tuple[str, bytes]]:
    """List documents, each with its kind. None of them is larger than a few megabytes, except one."""
    for levels, width in ((9, 9), (30, 2), (12, 50), (64, 3)):
        yield "YAML bomb", _build_yaml_bomb(levels, width)
    for levels in (10, 30, 100):
        yield "YAML bomb", _build_merge_bomb(levels)
    yield "YAML bomb", b"openapi: 3.0.0\npaths: &p\n  /a: *p\n"
    yield "YAML bomb", b"openapi: 3.0.0\npaths: !!python/object/apply:os.system ['true']\n"
    yield "YAML bomb", b"openapi: 3.0.0\n? {a: {b: {c: d}}}\n: {}\npaths: {}\n"
    yield "deep document", b"openapi: 3.0.0\npaths: " + b"[" * _DEPTH
    yield "deep document", b"openapi: 3.0.0\npaths: " + b"{a: " * 2_000 + b"}" * 2_000
    yield "deep document", b'{"openapi": "3.0.0", "paths": ' + b"[" * _DEPTH + b"]" * _DEPTH + b"}"
    yield "deep document", b'{"openapi": "3.0.0", "paths": ' + b'{"a":' * 1_000 + b"1" + b"}" * 1_000 + b"}"
    yield "deep document", b'{"keys": ' + b"[" * _DEPTH
    yield "long document", b'{"openapi": "3.0.0", "paths": {}, "x": "' + b"a" * _LONG + b'"}'
    yield "long document", b'{"n": ' + b"9" * 1_000_000 + b"}"
    yield "long document", b"[" + b"1," * 100_000 + b"1]"
    yield "long document", orjson.dumps({f"k{n}": n for n in range(100_000)})
    yield "long document", b'{"keys": [' + b'{"kty":"RSA","n":"AQAB","e":"AQAB"},' * 20_000 + b"{}]}"
    yield "broken document", b'{"openapi": "3.0.0", "paths": {"\xff\xfe": 1}}'
    yield "broken document", b"\x00" * 1_000
    yield "broken document", b'<!DOCTYPE x [<!ENTITY e SYSTEM "http://169.254.169.254/">]><x>&e;</x>'
    yield "broken document", b'{"jwks_uri": "https://169.254.169.254/", "jwks_uri": "https://127.0.0.1/"}'


def list_hostile_responses() -> Iterator[tuple[str, bytes]]:
    """List whole HTTP responses that are no document at all."""
    head = "HTTP/1.1 200 OK\r\nConnection: close\r\n"
    yield "broken response", f"{head}Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n".encode() + b"\x1f\x8b\x08"
    yield "broken response", f"{head}Content-Length: 99999999999\r\n\r\nx".encode()
    yield "broken response", f"{head}Content-Length: -1\r\n\r\nx".encode()
    yield "broken response", f"{head}Transfer-Encoding: chunked\r\n\r\nFFFFFFFFF\r\nx".encode()
    yield "broken response", f"{head}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nGET / ".encode()
    yield "broken response", head.encode() + b"X-Long: " + b"a" * 2_000_000 + b"\r\n\r\n"
    yield "broken response", head.encode() + b"".join(b"X-%d: a\r\n" % n for n in range(10_000)) + b"\r\n"
    yield "broken response", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    yield "broken response", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000
    yield "broken response", b"SSH-2.0-OpenSSH_9.2\r\n"


def build_referring_document(reference: str, number: int) -> bytes:
    """Build an OpenAPI document with a reference to somewhere else, in one of the places where there may be one."""
    target = {"$ref": reference}
    operation = {"operationId": "read", "summary": "Read it.", "responses": {"200": {"description": "It"}}}
    content = {"application/json": {"schema": target}}
    items = (
        {"get": {**operation, "parameters": [target]}},
        {"get": {**operation, "responses": {"200": target}}},
        {"get": {**operation, "responses": {"200": {"description": "It", "content": content}}}},
        {"post": {**operation, "requestBody": target}},
        {"post": {**operation, "requestBody": {"content": content}}},
        {"get": {**operation, "parameters": [{"name": "q", "in": "query", "schema": target}]}},
        {"get": {**operation, "externalDocs": {"url": reference}, "callbacks": {"on": target}}},
        {"get": {**operation, "servers": [{"url": reference}]}},
        {"servers": [{"url": reference}], "get": operation},
        {"get": {**operation, "security": [{"sign_in": []}]}},
        target,
    )
    schemes = {"sign_in": {"type": "openIdConnect", "openIdConnectUrl": reference}, "other": target}
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "Hostile", "version": "1", "termsOfService": reference, "contact": {"url": reference}},
            "jsonSchemaDialect": reference if number % 2 else "https://spec.openapis.org/oas/3.1/dialect/base",
            "servers": [{"url": "https://public.attacker.test/api"}],
            "paths": {"/it": items[number % len(items)]},
            "components": {"securitySchemes": schemes},
        }
    )


def build_server_document(url: str, number: int) -> bytes:
    """Build an OpenAPI document whose first server is at a URL, written out or with a variable."""
    server: dict[str, object] = {"url": url}
    if number % 2:
        server = {"url": "{place}", "variables": {"place": {"default": url}}}
    operation = {"operationId": "read", "summary": "Read it.", "responses": {"200": {"description": "It"}}}
    return orjson.dumps(
        {
            "openapi": "3.0.0",
            "info": {"title": "Hostile", "version": "1"},
            "servers": [server],
            "paths": {"/latest/meta-data": {"get": operation}},
        }
    )


def build_signing_in_document(server_url: str, issuer: str) -> bytes:
    """Build an OpenAPI document whose users sign in with accounts that they have at an issuer."""
    operation = {"operationId": "read", "summary": "Read it.", "responses": {"200": {"description": "It"}}}
    discovery = {"type": "openIdConnect", "openIdConnectUrl": f"{issuer}/.well-known/openid-configuration"}
    return orjson.dumps(
        {
            "openapi": "3.0.0",
            "info": {"title": "Hostile", "version": "1"},
            "servers": [{"url": server_url}],
            "paths": {"/it": {"get": {**operation, "security": [{"sign_in": []}]}}},
            "components": {"securitySchemes": {"sign_in": discovery}},
        }
    )
