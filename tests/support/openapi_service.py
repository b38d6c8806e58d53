"""An HTTP service with an OpenAPI document: keeps what it was sent, and answers as a test wants."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools
import orjson

from deputize.core.settings import ServiceSettings

NAME = "orders"
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "readOnly": True},
        "item": {"type": "string", "example": "tea"},
        "count": {"type": "integer", "format": "int32"},
        "note": {"type": "string", "nullable": True},
    },
    "required": ["id", "item"],
}
_REF = {"$ref": "#/components/schemas/Order"}
_OK = {"200": {"description": "The order", "content": {"application/json": {"schema": _REF}}}}
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def make_document(**more: Any) -> dict[str, Any]:
    """A small document with a read, a write that recognizes repeats, one that does not, and a deletion."""
    body = {"required": True, "content": {"application/json": {"schema": _REF}}}
    key = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Orders", "version": "1"},
        "servers": [{"url": "https://orders.example/v1"}],
        "security": [{"token": []}],
        "paths": {
            "/orders": {
                "post": {"operationId": "createOrder", "summary": "Create an order.", "parameters": [key],
                         "requestBody": body, "responses": {"201": _OK["200"]}},
            },
            "/orders/{id}": {
                "parameters": [_ID],
                "get": {"operationId": "getOrder", "summary": "Read one order.", "responses": _OK, "parameters": [
                    {"name": "fields", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                    {"name": "X-Region", "in": "header", "schema": {"type": "string"}},
                ]},
                "patch": {"operationId": "changeOrder", "summary": "Change an order.", "requestBody": body,
                          "responses": _OK},
                "delete": {"operationId": "deleteOrder", "summary": "Delete an order.",
                           "responses": {"204": {"description": "It is gone"}}},
            },
        },
        "components": {
            "schemas": {"Order": ORDER},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        **more,
    }  # fmt: skip


def make_service(document: Path | None = None, **more: Any) -> ServiceSettings:
    """Settings of the service; without a document, for tests that do not read it."""
    digest = "0" * 64 if document is None else hashlib.sha256(document.read_bytes()).hexdigest()
    fields: dict[str, Any] = {
        "name": NAME, "document": document or "orders.json", "sha256": digest, "url": "https://orders.example/v1",
        "credential": "vault", "secret": "orders", "security": "token", "slow": ("*",),
    }  # fmt: skip
    return ServiceSettings.model_validate({**fields, **more})


@dataclass
class SentRequest:
    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    # The names of all header lines, also of those that repeat one.
    lines: list[str] = field(default_factory=list)
    body: bytes = b""
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.lines.append(name.decode().lower())
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


@dataclass
class OpenApiService:
    """The running service. An answer is a status, headers and a body; None closes the connection without one."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], Any] | None] = field(default_factory=list)
    requests: list[SentRequest] = field(default_factory=list)
    # Requests whose path ends in "slow" are answered only once it is set.
    is_fast: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, body))

    def lose_answer(self) -> None:
        self.answers.append(None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = SentRequest()
        parser = httptools.HttpRequestParser(request)
        while not request.is_complete and (data := await reader.read(65_536)):
            parser.feed_data(data)
        request.method = parser.get_method().decode()
        self.requests.append(request)
        if request.path.endswith("slow"):
            await self.is_fast.wait()
        answer = self.answers.pop(0) if self.answers else (200, {}, {"id": "1", "item": "tea"})
        if answer is not None:
            status, headers, content = answer
            is_raw = isinstance(content, bytes)
            body: bytes = content if isinstance(content, bytes) else orjson.dumps(content)
            lines = {} if is_raw else {"content-type": "application/json"}
            lines |= {"content-length": str(len(body)), "connection": "close", **headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def open_service() -> AsyncIterator[OpenApiService]:
    """Run the service on this machine."""
    service = OpenApiService()
    server = await asyncio.start_server(service._serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield service
    finally:
        server.close()
