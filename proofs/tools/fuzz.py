"""What the fuzzers call: a read and a write that take every kind of JSON value and give it back."""

from typing import Annotated, Any

from pydantic import Field

from deputize import tool

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
