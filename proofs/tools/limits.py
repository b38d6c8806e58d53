"""What limits are tried on: reads that do nothing, and reads that say what they cost."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from deputize import Result, tool

Word = Annotated[str, Field(description="Anything", examples=["a"], max_length=64)]
Cents = Annotated[int, Field(description="What this look is to cost", ge=0, le=50, examples=[3])]
COSTLY: dict[str, Any] = {"cost_category": "api", "cost_per_call": 0.5}


class WordResult(BaseModel):
    model_config = ConfigDict(extra="forbid")

    word: Annotated[str, Field(description="What was given")]


@tool(effects="read", namespace="limits", version="1.0.0")
async def look(word: Word) -> WordResult:
    """Give the word back, at a limited rate."""
    return WordResult(word=word)


@tool(effects="read", namespace="limits", version="1.0.0")
async def strict(word: Word) -> WordResult:
    """Give the word back, under a rule that says no while it cannot be counted."""
    return WordResult(word=word)


@tool(effects="read", namespace="limits", version="1.0.0")
async def lenient(word: Word) -> WordResult:
    """Give the word back, under a rule that says yes while it cannot be counted."""
    return WordResult(word=word)


@tool(effects="read", namespace="limits", version="1.0.0")
async def again(word: Word) -> WordResult:
    """Give the word back, as often as no loop would ask for it."""
    return WordResult(word=word)


@tool(effects="read", namespace="limits", version="1.0.0", observability=COSTLY, returns=WordResult)
async def spend(cents: Cents) -> Result:
    """Cost what is asked for, out of a budget."""
    return Result(payload={"word": "spent"}, cost=cents / 100)


@tool(effects="read", namespace="limits", version="1.0.0", observability=COSTLY, returns=WordResult)
async def burn(cents: Cents) -> Result:
    """Cost what is asked for, as fast as cost may rise."""
    return Result(payload={"word": "burnt"}, cost=cents / 100)
