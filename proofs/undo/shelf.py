"""A REST service of the proof's own: items under names, and what each held before it was put."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

MANIFEST = """\
name: shelf.put
description: Put an item on the shelf, or clear its place; the answer is what stood there before.
http: PUT /items/{name}
effects: write
undo: shelf.put
resources: ["update shelf.items/{name}"]
compensation:
  compensation_class: full
  tool: shelf.put
  bind: {name: /arguments/name, body: /result/body}
input_schema:
  required: [body]
  properties:
    name: {type: string, description: The name of the item., examples: [p0-i0]}
    body:
      type: object
      description: What it holds; null clears the place.
      additionalProperties: false
      required: [value]
      properties: {value: {type: [string, "null"]}}
      examples: [{value: a}]
"""


@dataclass(slots=True)
class Shelf:
    items: dict[str, str] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while (request := await _read_request(reader)) is not None:
                name = request.path.rpartition("/")[2]
                before = self.items.pop(name, None)
                value: Any = orjson.loads(request.body)["value"]
                if value is not None:
                    self.items[name] = value
                body = orjson.dumps({"value": before})
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        writer.close()


@dataclass(slots=True)
class _Request:
    path: str = ""
    body: bytes = b""
    is_complete: bool = False

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.is_complete = True


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    request = _Request()
    parser = httptools.HttpRequestParser(request)
    while not request.is_complete:
        data = await reader.read(65_536)
        if not data:
            return None
        parser.feed_data(data)
    return request
