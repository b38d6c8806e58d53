"""What the barrier is tried on: a write that the ledger remembers by its call, and a read."""

import asyncio
import json
import os
import time
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from deputize import ToolContext, tool

# The ledger closes what idles for 5 s; a connection is dropped well before that.
_IDLE_SECONDS = 2.0
_idle_connections: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

Word = Annotated[str, Field(description="Anything", examples=["a"], max_length=64)]


class WordResult(BaseModel):
    model_config = ConfigDict(extra="forbid")

    word: Annotated[str, Field(description="What was given")]


@tool(
    effects="write",
    namespace="barrier",
    version="1.0.0",
    undo="barrier.look",
    resources=["create words/{word}"],
    scopes=["proof:write"],
    idempotency="cannot",
)
async def act(word: Word, context: ToolContext) -> WordResult:
    """Have an effect outside, remembered there under the id of this call."""
    await _record_effect(context.key)
    return WordResult(word=word)


@tool(effects="read", namespace="barrier", version="1.0.0")
async def look(word: Word) -> WordResult:
    """Give the word back and change nothing."""
    return WordResult(word=word)


async def _record_effect(key: str) -> None:
    """A kept connection of our own: a full client would be most of this tool's time."""
    ledger_url = urlsplit(os.environ["PROOF_LEDGER"])
    since, reader, writer = _idle_connections.pop() if _idle_connections else (0.0, None, None)
    if reader is None or writer is None or time.monotonic() - since > _IDLE_SECONDS:
        reader, writer = await asyncio.open_connection(ledger_url.hostname, ledger_url.port)
    body = json.dumps({"key": key, "tool": "barrier.act", "call": key}).encode()
    writer.write(b"POST /effect HTTP/1.1\r\nhost: ledger\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(length)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError("the ledger refused")
    _idle_connections.append((time.monotonic(), reader, writer))
