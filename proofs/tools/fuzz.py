"""What the fuzzers call: a read and a write that take every kind of JSON value and give it back, one that people are
asked about, and others for runs."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from deputize import ToolContext, tool

Text = Annotated[str, Field(description="Any text", examples=["a"])]
Number = Annotated[float, Field(description="Any number", examples=[1.5])]
Whole = Annotated[int, Field(description="Any whole number", examples=[7])]
Many = Annotated[list[str], Field(description="Any texts", examples=[["a"]])]


@tool(effects="read", namespace="fuzz", version="1.0.0")
async def echo(text: Text, number: Number = 0.0, whole: Whole = 0, many: Many = []) -> dict[str, Any]:  # noqa: B006 -- never changed, and shown in the schema as it is
    """Give every argument back as it came."""
    return {"text": text, "number": number, "whole": whole, "many": many}


@tool(
    effects="write",
    namespace="fuzz",
    version="1.0.0",
    undo="fuzz.echo",
    resources=["create notes/{text}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
)
async def note(text: Text, number: Number = 0.0) -> dict[str, Any]:
    """Take every argument and keep nothing."""
    return {"text": text, "number": number}


@tool(
    effects="write",
    namespace="fuzz",
    version="1.0.0",
    undo="fuzz.echo",
    resources=["create notes/{text}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
)
async def plead(text: Text, number: Number = 0.0) -> dict[str, Any]:
    """Take every argument once people have said yes, and keep nothing."""
    return {"text": text, "number": number}


@tool(effects="read", namespace="fuzz", version="1.0.0", timeout=5.0)
async def steps(text: Text, context: ToolContext) -> dict[str, Any]:
    """Take a little while, and say how far it is."""
    context.progress(1, 2, "half way")
    context.partial({"text": text})
    await asyncio.sleep(0.2)
    return {"text": text}


@tool(effects="read", namespace="fuzz", version="1.0.0", timeout=6.0)
async def linger(text: Text) -> dict[str, Any]:
    """Take so long that it can be stopped."""
    await asyncio.sleep(4)
    return {"text": text}


@tool(
    effects="write",
    namespace="fuzz",
    version="1.0.0",
    undo="fuzz.echo",
    resources=["create notes/{text}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
    checkpoints={"enabled": True},
    timeout=1.0,
)
async def slip(text: Text, context: ToolContext) -> dict[str, Any]:
    """Get half way, every time, and then to an end that no one can know."""
    await context.save({"text": text}, name="half")
    raise ConnectionError(text)


@tool(
    effects="write",
    namespace="fuzz",
    version="1.0.0",
    undo="fuzz.echo",
    resources=["create notes/{text}"],
    scopes=["proof:write"],
    idempotency="cannot",
    timeout=1.0,
)
async def lose(text: Text) -> dict[str, Any]:
    """Come to an end that no one can know, and that only a person can find out."""
    raise ConnectionError(text)
