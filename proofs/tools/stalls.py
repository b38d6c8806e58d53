"""Tools that a proof calls with whatever costs most to read."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from deputize import Fact, tool

Name = Annotated[str, Fact(), Field(description="Who is greeted", examples=["ann"], max_length=100_000)]


class Sum(BaseModel):
    left: "float | Sum | Product" = Field(description="What to compute first", examples=[1.5])


class Product(BaseModel):
    left: "float | Sum | Product" = Field(description="What to compute first", examples=[1.5])


Expression = Annotated[float | Sum | Product, Field(description="What to compute", examples=[1.5])]
Value = Annotated[Any, Field(description="Anything", examples=[1])]


@tool(effects="read", namespace="stalls", timeout=20.0)
async def greet(name: Name) -> str:
    """Greet a user whose name rules may compare."""
    return f"hello {name[:20]}"


@tool(
    effects="read", namespace="stalls", timeout=20.0,
    predicates=[{"name": "spelled", "holds": {"properties": {"output": {"pattern": "[ab]*a[ab]{900}c"}}}}],
)  # fmt: skip
async def spell(name: Name) -> str:
    """Return a name that its predicate takes long to check."""
    return name


@tool(effects="read", namespace="stalls", timeout=20.0)
async def echo(value: Value) -> Any:
    """Return the value as it came."""
    return value


@tool(effects="read", namespace="stalls", timeout=20.0)
async def compute(expression: Expression) -> int:
    """Compute nothing, of an ordinary recursive type."""
    return 0


@tool(
    effects="write", namespace="stalls", undo="stalls.echo", resources=["create things"], scopes=["proof:write"],
    timeout=20.0,
)  # fmt: skip
async def wipe(value: Value) -> int:
    """Do nothing, after an approver allowed it."""
    return 0
