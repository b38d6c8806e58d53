"""Every route reads its body itself, by the gateway's strict reader, once it knows who asks."""

import contextlib
from typing import Any

from fastapi.routing import iter_route_contexts

from deputize.interfaces.asgi import Api, build_api
from tests.integration.conftest import HttpGateway

# Here the body says who asks.
BY_BODY = {("POST", "/oauth/token")}
# Depth, names that occur twice and NUL are for the strict reader alone to refuse.
ODD_BODIES = (
    b'{"call_id": "a", "call_id": "b"}',
    b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"session": "a\\u0000"}',
)


def test_no_route_lets_the_framework_parse_a_body() -> None:
    routes = list(iter_route_contexts(build_api(_fail_to_open).rest.routes))
    assert len(routes) > 50
    assert [each.path for each in routes if getattr(each, "body_field", None) is not None] == []


async def test_no_route_reads_a_body_before_it_knows_who_asks(gateway: HttpGateway) -> None:
    in_process = gateway.in_process
    assert in_process is not None
    api = build_api(lambda: contextlib.nullcontext(in_process))
    async with api.open_gateway():
        answers = {(verb, path): await _post_without_token(api, verb, path) for verb, path in _list_routes(api)}
    assert len(answers) > 25
    assert {route: answer for route, answer in answers.items() if answer != (401, 0)} == {}


async def test_undo_reads_its_bodies_as_strictly_as_all_others(gateway: HttpGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.token()}", "content-type": "application/json"}
    large = b" " * (gateway.settings.server.max_body_bytes + 1)
    for path in ("/v1/undo/plan", "/v1/undo", "/v1/undo/requests"):
        for body, status in (*((each, 400) for each in ODD_BODIES), (large, 413)):
            answer = await gateway.http.post(path, content=body, headers=headers)
            assert answer.status_code == status, (path, body[:40], answer.text)


def _fail_to_open() -> Any:
    raise NotImplementedError


def _list_routes(api: Api) -> list[tuple[str, str]]:
    return [
        (verb.upper(), path)
        for path, operations in api.rest.openapi()["paths"].items()
        for verb, operation in operations.items()
        if "requestBody" in operation and (verb.upper(), path) not in BY_BODY
    ]


async def _post_without_token(api: Api, verb: str, path: str) -> tuple[int, int]:
    """Return the status, and how often the body was read."""
    reads, status = 0, 0

    async def receive() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {
        "type": "http", "http_version": "1.1", "method": verb, "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("gateway", 80),
        "headers": [(b"host", b"gateway"), (b"content-type", b"application/json")],
    }  # fmt: skip
    await api(scope, receive, send)
    return status, reads
