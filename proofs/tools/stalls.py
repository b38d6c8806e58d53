"""Tools that a proof calls with whatever costs most to read."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from deputize import Fact, tool

Name = Annotated[str, Fact(), Field(description="Who is greeted", examples=["ann"], max_length=100_000)]


class Sum(BaseModel):
    """One of two kinds of branches, so that a wrong leaf is wrong in as many ways as there are paths to it."""

    left: "Expression" = Field(description="What is added", examples=[1.0])
    right: "Expression" = Field(description="What it is added to", examples=[2.0])


class Product(BaseModel):
    """The other kind."""

    left: "Expression" = Field(description="What is multiplied", examples=[1.0])
    right: "Expression" = Field(description="What it is multiplied by", examples=[2.0])


Expression = Sum | Product | float
Value = Annotated[Any, Field(description="Anything", examples=[1])]


@tool(effects="read", namespace="stalls", timeout=20.0)
async def greet(name: Name) -> str:
    """Greet a user whose name rules may compare."""
    return f"hello {name[:20]}"


@tool(effects="read", namespace="stalls", timeout=20.0)
async def echo(value: Value) -> Any:
    """Return the value as it came."""
    return value


@tool(effects="read", namespace="stalls", timeout=20.0)
async def weigh(expression: Annotated[Expression, Field(description="What to weigh", examples=[1.0])]) -> str:
    """Tell of which kind an expression is."""
    return type(expression).__name__


@tool(
    effects="write", namespace="stalls", undo="stalls.echo", resources=["create things"], scopes=["proof:write"],
    timeout=20.0,
)  # fmt: skip
async def wipe(value: Value) -> int:
    """Do nothing, after an approver allowed it."""
    return 0
